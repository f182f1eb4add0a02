//! Conversion of descriptors to a product, or to the reason why it is not supported.
use super::descriptors::{Layout, Matmul};
use super::types::{
    COMPUTE_F32, EPILOGUE_BIAS, EPILOGUE_DEFAULT, EPILOGUE_GELU, EPILOGUE_GELU_BIAS, Result, Status,
    data_type, reject, strided,
};
use crate::rocblas::problem::{Bias, Operand, Place, Problem, Scalar};
use crate::rocblas::types::{DataType, Operation, Types};

/// Architectures for which the library has kernels.
const SUPPORTED_ARCHS: [&str; 8] =
    ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201"];

/// Returns the 8-bit float of an architecture, if any.
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
    /// Returns the product without its addresses and factors.
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
                    format!("{name} is {rows} x {columns}; D and the operations require {m_of} x {n_of}");
                return reject(Status::InvalidValue, reason);
            }
            if layout.batch != d.batch {
                let reason = format!("the batch of {name} is {}, that of D {}", layout.batch, d.batch);
                return reject(Status::InvalidValue, reason);
            }
        }
        if d.batch > 1 && d.stride == 0 && m > 0 && n > 0 {
            return reject(Status::InvalidValue, "all products of the batch write the same D");
        }
        let bias = match self.matmul.epilogue {
            EPILOGUE_BIAS | EPILOGUE_GELU_BIAS => {
                Some(Bias { address: 0, kind: self.bias_kind(types.output)? })
            }
            EPILOGUE_DEFAULT | EPILOGUE_GELU => None,
            other => {
                return reject(Status::NotSupported, format!("the software GPU has no epilogue {other}"));
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
            gelu: matches!(self.matmul.epilogue, EPILOGUE_GELU | EPILOGUE_GELU_BIAS),
        })
    }

    fn types(&self, arch: &str) -> Result<Types> {
        use DataType::{Bf16, F16, F32};
        let codes = self.layouts.map(|layout| layout.kind);
        let rejected = |reason| reject(Status::NotSupported, reason);
        if !SUPPORTED_ARCHS.contains(&arch) {
            return rejected(format!("hipBLASLt has no kernels for {arch}"));
        }
        let Matmul { compute, scale, .. } = *self.matmul;
        if compute != COMPUTE_F32 || data_type(scale) != Some(F32) {
            return rejected(format!("no products in compute type {compute} with factors of type {scale}"));
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
            _ => rejected(format!("no products of the data types {codes:?} on {arch}")),
        }
    }

    /// Returns the type of the bias, which must be D's or that of the factors.
    fn bias_kind(&self, output: DataType) -> Result<DataType> {
        match self.matmul.bias_kind {
            None => Ok(output),
            Some(code) => match data_type(code) {
                Some(kind) if kind == output || kind == DataType::F32 => Ok(kind),
                _ => reject(Status::NotSupported, format!("no bias of type {code} with this type of D")),
            },
        }
    }
}

/// Returns a matrix without its address.
fn operand(layout: &Layout) -> Result<Operand> {
    let Layout { rows, columns, ld, batch, stride, order, .. } = *layout;
    if order != 0 {
        return reject(Status::NotSupported, "the software GPU supports only column-major matrices");
    }
    let fits = |size: u64| i32::try_from(size).is_ok();
    match i32::try_from(ld) {
        Ok(ld) if fits(rows) && fits(columns) && ld as u64 >= rows && ld >= 0 && batch >= 0 => {
            Ok(strided(0, ld, stride))
        }
        _ => {
            let reason = format!("bad layout: {rows} x {columns}, leading dimension {ld}, batch {batch}");
            reject(Status::InvalidValue, reason)
        }
    }
}

/// Sets the address of a matrix.
pub fn at(operand: Operand, address: usize) -> Operand {
    match operand.place {
        Place::Strided { stride, .. } => strided(address, operand.ld, stride),
        Place::Pointers { .. } => operand,
    }
}
