//! Integer operations with carries, which use lane masks as third source and second destination.
use super::kind::{B16, B32, I32, I64, Mask, U16, U32, U64};
use super::operation::operations;

operations! { select;
    "v_add_co_u32" Add (a: U32, b: U32) -> U32 { a.wrapping_add(b) } carry { a.wrapping_add(b) < a }
    "v_sub_co_u32" Sub (a: U32, b: U32) -> U32 { a.wrapping_sub(b) } carry { b > a }
    "v_add_co_ci_u32" AddCarry (a: U32, b: U32, carry: Mask) -> U32 {
        a.wrapping_add(b).wrapping_add(u32::from(carry))
    } carry {
        let sum = a.wrapping_add(b);
        (sum < a) | (carry & (sum == u32::MAX))
    }
    "v_sub_co_ci_u32" SubBorrow (a: U32, b: U32, carry: Mask) -> U32 {
        a.wrapping_sub(b).wrapping_sub(u32::from(carry))
    } carry { (b > a) | (carry & (b == a)) }
    "v_mad_u64_u32" Mad64 (a: U32, b: U32, c: U64) -> U64 {
        (u64::from(a) * u64::from(b)).wrapping_add(c)
    } carry {
        let product = u64::from(a) * u64::from(b);
        product.wrapping_add(c) < product
    }
    "v_mad_i64_i32" Mad64Signed (a: I32, b: I32, c: I64) -> I64 {
        (i64::from(a) * i64::from(b)).wrapping_add(c)
    } carry {
        let product = i64::from(a) * i64::from(b);
        // The 65th bit of the sum of sign-extended numbers is the sign of the exact sum.
        let sum = product.wrapping_add(c);
        (sum ^ ((product ^ sum) & (c ^ sum))) < 0
    }
    "v_cndmask_b32" Select (a: B32, b: B32, condition: Mask) -> U32 { if condition { b } else { a } }
    "v_cndmask_b16" Select16 (a: B16, b: B16, condition: Mask) -> U16 { if condition { b } else { a } }
}
