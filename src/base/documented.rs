//! Structs whose fields say what they are both to readers of the code and to readers of what is written.

/// A struct that is written down, and `DOCUMENTED`: of each field its name and its comment, in their order.
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
