//! Codes of the operations that report indices out of range.

use super::Family;

macro_rules! fault_codes {
    ($($name:ident = $value:literal),*) => {
        subject! {
            modules {}
            constants { $(
                /// Code of the operation that reported an index out of range; 0 means none.
                $name = $value,
            )* }
        }
    };
}
fault_codes! {
    FAULT_INDEX_SELECT = 1, FAULT_GATHER = 2, FAULT_SCATTER = 3, FAULT_SCATTER_ADD = 4, FAULT_INDEX_ADD = 5,
    FAULT_EMBEDDING = 6, FAULT_EXPERT = 7, FAULT_SEQUENCE = 8, FAULT_PAGE = 9, FAULT_CACHE = 10,
    FAULT_POSITION = 11
}

fn families() -> Vec<Family> {
    Vec::new()
}
