//! Declarations of the functions of NVIDIA's libraries, with integer status codes.
//!
//! cudarc also declares them, but returns Rust enums of the codes known to it. A newer driver may return another code,
//! and a Rust enum with an unknown value is undefined behaviour. So cudarc only loads the libraries and provides
//! handles and the structs and enums that are passed in; everything that a library writes is an integer.

// Names and parameter counts follow the libraries.
#![allow(non_camel_case_types, non_snake_case, clippy::too_many_arguments)]

pub(super) mod cublaslt;
pub(super) mod driver;
pub(super) mod nccl;
pub(super) mod nvrtc;

use libloading::Library;

/// A status: 0, or an error code of the library.
pub(super) type Status = u32;

/// The status if the library does not have the function. No library uses codes that are negative as C integers.
pub(super) const NO_SUCH_FUNCTION: Status = Status::MAX;

/// Looks up a function of a library.
///
/// # Safety
/// The function has type `F`.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: guaranteed by the caller.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Declares functions of a library, which must be loaded before the first call. Each is looked up once. It returns its
/// status, or `NO_SUCH_FUNCTION` if the library does not have it; with a declared return type, it returns `Some(value)`
/// or `None`.
macro_rules! functions {
    (of $library:expr; $(fn $name:ident($($parameter:ident: $type:ty),*) $(-> $value:ty)?;)*) => {
        $(functions!(@one $library, $name($($parameter: $type),*) $($value)?);)*
    };
    (@one $library:expr, $name:ident($($parameter:ident: $type:ty),*)) => {
        pub(in crate::cuda) unsafe fn $name($($parameter: $type),*) -> $crate::cuda::calls::Status {
            let function = functions!(@find $library, $name, fn($($type),*) -> $crate::cuda::calls::Status);
            // SAFETY: guaranteed by the caller.
            function.map_or($crate::cuda::calls::NO_SUCH_FUNCTION, |function| unsafe {
                function($($parameter),*)
            })
        }
    };
    (@one $library:expr, $name:ident($($parameter:ident: $type:ty),*) $value:ty) => {
        pub(in crate::cuda) unsafe fn $name($($parameter: $type),*) -> Option<$value> {
            // SAFETY: guaranteed by the caller.
            functions!(@find $library, $name, fn($($type),*) -> $value).map(|function| unsafe {
                function($($parameter),*)
            })
        }
    };
    (@find $library:expr, $name:ident, fn($($type:ty),*) -> $answer:ty) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $answer;
        static FUNCTION: std::sync::OnceLock<Option<Function>> = std::sync::OnceLock::new();
        // SAFETY: the library is loaded, and its documentation declares the function with this type.
        *FUNCTION.get_or_init(|| unsafe { $crate::cuda::calls::find($library, stringify!($name)) })
    }};
}
use functions;

#[cfg(test)]
mod tests {
    use libloading::Library;
    use libloading::os::unix::Library as Loaded;

    fn program() -> &'static Library {
        static PROGRAM: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
        PROGRAM.get_or_init(|| Loaded::this().into())
    }

    super::functions! {
        of program();
        fn abs(number: i32);
        fn labs(number: i64) -> i64;
        fn no_library_has_this();
        fn no_library_has_that() -> i64;
    }

    #[test]
    fn missing_functions_are_reported() {
        // SAFETY: the C library declares both with these types.
        unsafe {
            assert_eq!(abs(-4242), 4242, "unknown codes are passed through");
            assert_eq!(labs(-4242), Some(4242));
        }
        // SAFETY: nothing is called.
        unsafe {
            assert_eq!(no_library_has_this(), super::NO_SUCH_FUNCTION);
            assert_eq!(no_library_has_that(), None);
        }
    }
}
