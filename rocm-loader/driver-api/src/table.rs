//! Function tables, which list the functions of a compiled-in driver.
use crate::error::LoadError;
use crate::library::Library;

/// The address of a C function, without its prototype.
pub type Address = unsafe extern "C" fn();

/// The functions of one library by their C names, `None` for those that the driver lacks.
pub type Table = &'static [(&'static str, Option<Address>)];

/// Returns the address of `symbol` in the tables of a driver.
///
/// # Errors
/// [`LoadError::NotInDriver`] with `driver` (`the software GPU`) if no table of the library has it.
pub fn find(
    tables: &[(Library, Table)],
    library: Library,
    symbol: &'static str,
    driver: &'static str,
) -> Result<Address, LoadError> {
    let functions = tables.iter().filter(|(of, _)| *of == library).flat_map(|(_, table)| table.iter());
    let found = functions.filter(|(name, _)| *name == symbol).find_map(|(_, address)| *address);
    found.ok_or(LoadError::NotInDriver { driver, symbol })
}

/// Builds the [`Table`] of a library from the functions of a module: `hip_functions!(table functions)`. The module must
/// have every required function with exactly the prototype that this crate lists. Optional functions are left out; a
/// driver that has some adds another table for them.
///
/// The types of the prototypes must be in scope: `use rocm_driver_api::hip::*`.
#[macro_export]
macro_rules! table {
    ($functions:ident $($need:ident $declaration:ident {
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty;)*
    })*) => {
        &[$($((stringify!($name), $crate::table_entry!($need $functions $name fn($($type),*) -> $result)),)*)*]
    };
}

/// Builds one entry of a [`table!`].
#[doc(hidden)]
#[macro_export]
macro_rules! table_entry {
    (required $functions:ident $name:ident fn($($type:ty),*) -> $result:ty) => {
        // SAFETY: both are function pointers; callers cast the address back to its prototype.
        Some(unsafe {
            std::mem::transmute::<unsafe extern "C" fn($($type),*) -> $result, $crate::table::Address>($functions::$name)
        })
    };
    (optional $($any:tt)*) => {
        None
    };
}
