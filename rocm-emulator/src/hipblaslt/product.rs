//! From descriptors to a product that can be computed, or why there is none.
use super::descriptors::{Layout, Matmul};
use super::types::{
    COMPUTE_F32, EPILOGUE_BIAS, EPILOGUE_DEFAULT, Result, Status, data_type, refuse, strided,
};
use crate::rocblas::problem::{Bias, Operand, Place, Problem, Scalar};
use crate::rocblas::types::{DataType, Operation, Types};

/// Architectures that the library has kernels for.
const WITH_KERNELS: [&str; 7] = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1200", "gfx1201"];

/// The 8-bit float of an architecture, if it has one.
fn small_float(arch: &str) -> Option<DataType> {
    match arch {
        "gfx942" => Some(DataType::F8Fnuz),
        "gfx950" | "gfx1200" | "gfx1201" => Some(DataType::F8),
        _ => None,
    }
}

/// The descriptors of a product.
pub struct Request<'a> {
    pub matmul: &'a Matmul,
    /// A, B, C and D.
    pub layouts: [Layout; 4],
}

impl Request<'_> {
    /// The product without its addresses and factors.
    pub fn problem(&self, arch: &str) -> Result<Problem> {
        let [a, b, c, d] = self.layouts;
        let types = self.types(arch)?;
        let [a_place, b_place, c_place, d_place] = [operand(&a)?, operand(&b)?, operand(&c)?, operand(&d)?];
        let (m, n) = (d.rows, d.columns);
        let k = if self.matmul.op_a == Operation::None { a.columns } else { a.rows };
        let stored =
            |op, rows, columns| if op == Operation::None { (rows, columns) } else { (columns, rows) };
        let (wanted_a, wanted_b) = (stored(self.matmul.op_a, m, k), stored(self.matmul.op_b, k, n));
        for (name, layout, wanted) in [("A", a, wanted_a), ("B", b, wanted_b), ("C", c, (m, n))] {
            if (layout.rows, layout.columns) != wanted {
                let Layout { rows, columns, .. } = layout;
                let (m_of, n_of) = wanted;
                let reason =
                    format!("{name} is {rows} x {columns}; D and the operations want {m_of} x {n_of}");
                return refuse(Status::InvalidValue, reason);
            }
            if layout.batch != d.batch {
                let reason = format!("the batch of {name} is {}, that of D {}", layout.batch, d.batch);
                return refuse(Status::InvalidValue, reason);
            }
        }
        if d.batch > 1 && d.stride == 0 && m > 0 && n > 0 {
            return refuse(Status::InvalidValue, "all products of the batch have the same D");
        }
        let bias = match self.matmul.epilogue {
            EPILOGUE_BIAS => Some(Bias { address: 0, kind: self.bias_kind(types.output)? }),
            EPILOGUE_DEFAULT => None,
            other => {
                return refuse(Status::NotSupported, format!("the software GPU has no epilogue {other}"));
            }
        };
        Ok(Problem {
            function: "hipblasLtMatmul",
            types,
            op_a: self.matmul.op_a,
            op_b: self.matmul.op_b,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: Scalar::Missing,
            beta: Scalar::Missing,
            a: a_place,
            b: b_place,
            c: c_place,
            d: d_place,
            batch: d.batch,
            bias,
        })
    }

    fn types(&self, arch: &str) -> Result<Types> {
        use DataType::{Bf16, F16, F32};
        let codes = self.layouts.map(|layout| layout.kind);
        let refused = |reason| refuse(Status::NotSupported, reason);
        if !WITH_KERNELS.contains(&arch) {
            return refused(format!("hipBLASLt has no kernels for {arch}"));
        }
        let Matmul { compute, scale, .. } = *self.matmul;
        if compute != COMPUTE_F32 || data_type(scale) != Some(F32) {
            return refused(format!("no products in compute type {compute} with factors of type {scale}"));
        }
        let small = small_float(arch);
        match codes.map(data_type) {
            [Some(input), Some(other), Some(c), Some(output)]
                if input == other
                    && c == output
                    && match input {
                        F32 => output == F32,
                        F16 => matches!(output, F16 | F32),
                        Bf16 => matches!(output, Bf16 | F32),
                        _ => small == Some(input) && matches!(output, F16 | Bf16 | F32),
                    } =>
            {
                Ok(Types { input, output, scalar: F32 })
            }
            _ => refused(format!("no products of the data types {codes:?} on {arch}")),
        }
    }

    /// A bias has D's type, or that of the factors.
    fn bias_kind(&self, output: DataType) -> Result<DataType> {
        match self.matmul.bias_kind {
            None => Ok(output),
            Some(code) => match data_type(code) {
                Some(kind) if kind == output || kind == DataType::F32 => Ok(kind),
                _ => refuse(Status::NotSupported, format!("no bias of type {code} beside D's")),
            },
        }
    }
}

/// A matrix without its address.
fn operand(layout: &Layout) -> Result<Operand> {
    let Layout { rows, columns, ld, batch, stride, order, .. } = *layout;
    if order != 0 {
        return refuse(Status::NotSupported, "the software GPU has column-major matrices only");
    }
    let fits = |size: u64| i32::try_from(size).is_ok();
    match i32::try_from(ld) {
        Ok(ld) if fits(rows) && fits(columns) && ld as u64 >= rows && ld >= 0 && batch >= 0 => {
            Ok(strided(0, ld, stride))
        }
        _ => {
            let reason = format!("a layout of {rows} x {columns}, leading dimension {ld}, batch {batch}");
            refuse(Status::InvalidValue, reason)
        }
    }
}

/// Puts an address into a matrix.
pub fn at(operand: Operand, address: usize) -> Operand {
    match operand.place {
        Place::Strided { stride, .. } => strided(address, operand.ld, stride),
        Place::Pointers { .. } => operand,
    }
}
