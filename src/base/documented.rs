//! Structs whose field documentation is available at run time.

/// Defines a struct and its constant `DOCUMENTED`: the name and doc comment of each field, in order.
#[macro_export]
macro_rules! documented {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $(
                $(#[doc = $text:literal])+
                $(#[serde($($serde:tt)*)])?
                pub $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[$attribute])*
        pub struct $name {
            $(
                $(#[doc = $text])+
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )*
        }

        impl $name {
            pub const DOCUMENTED: &[(&'static str, &'static str)] =
                &[$((stringify!($field), concat!($($text),+))),*];
        }
    };
}
