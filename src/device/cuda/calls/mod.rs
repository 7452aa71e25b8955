//! The functions of NVIDIA's libraries that are called, declared here with numbers for their answers.
//!
//! cudarc declares them, too, with Rust enums of the codes that were known when it was made. A newer driver may answer
//! with another code, and a Rust enum of an unknown value is undefined behaviour. So cudarc loads the libraries, and
//! gives handles, structs that are passed in and enums that are passed in; whatever a library writes is a number.

// Names are the libraries' own, and so is the number of parameters.
#![allow(non_camel_case_types, non_snake_case, clippy::too_many_arguments)]

pub(super) mod cublaslt;
pub(super) mod driver;
pub(super) mod nvrtc;

use libloading::Library;

/// What a function answers: 0, or a code of its library's own.
pub(super) type Status = u32;

/// The answer where the library has no such function; no library has a code that is negative to C.
pub(super) const NO_SUCH_FUNCTION: Status = Status::MAX;

/// The function of a name in a library.
///
/// # Safety
/// It is of type `F`.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

/// Declares functions of a library, which must be loaded before one of them is called. Each is looked up once. It
/// answers with its status, `NO_SUCH_FUNCTION` where there is none of that name; one that is declared with a value
/// answers with that, or with `None`.
macro_rules! functions {
    (of $library:expr; $(fn $name:ident($($parameter:ident: $type:ty),*) $(-> $value:ty)?;)*) => {
        $(functions!(@one $library, $name($($parameter: $type),*) $($value)?);)*
    };
    (@one $library:expr, $name:ident($($parameter:ident: $type:ty),*)) => {
        pub(in crate::cuda) unsafe fn $name($($parameter: $type),*) -> $crate::cuda::calls::Status {
            let function = functions!(@find $library, $name, fn($($type),*) -> $crate::cuda::calls::Status);
            // SAFETY: the caller's promise.
            function.map_or($crate::cuda::calls::NO_SUCH_FUNCTION, |function| unsafe {
                function($($parameter),*)
            })
        }
    };
    (@one $library:expr, $name:ident($($parameter:ident: $type:ty),*) $value:ty) => {
        pub(in crate::cuda) unsafe fn $name($($parameter: $type),*) -> Option<$value> {
            // SAFETY: the caller's promise.
            functions!(@find $library, $name, fn($($type),*) -> $value).map(|function| unsafe {
                function($($parameter),*)
            })
        }
    };
    (@find $library:expr, $name:ident, fn($($type:ty),*) -> $answer:ty) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $answer;
        static FUNCTION: std::sync::OnceLock<Option<Function>> = std::sync::OnceLock::new();
        // SAFETY: the library is loaded, and its documentation declares the function like this.
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
    fn a_function_that_a_library_lacks_is_an_answer() {
        // SAFETY: the C library declares both like this.
        unsafe {
            assert_eq!(abs(-4242), 4242, "a code that nobody knows is a number");
            assert_eq!(labs(-4242), Some(4242));
        }
        // SAFETY: nothing is called.
        unsafe {
            assert_eq!(no_library_has_this(), super::NO_SUCH_FUNCTION);
            assert_eq!(no_library_has_that(), None);
        }
    }
}
