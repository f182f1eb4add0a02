//! Cases of the benchmark: operation, operands, and the amounts of data and computation.
use candle_core::{DType, Device, Result, Tensor};
use std::hint::black_box;

/// Float dtypes that are measured.
pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// 2^20 elements.
pub const M: usize = 1 << 20;

/// Work that is enqueued once per iteration; its results are dropped before it returns.
pub type Work = Box<dyn FnMut() -> Result<()>>;
/// Creates the operands on a device, and the work on them.
type Prepare = dyn Fn(&Device) -> Result<Work> + Sync;

/// Sizes of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// Full sizes, for which results are published.
    Full,
    /// Sizes of a few megabytes for the software GPU: counts executed instructions instead of measuring time.
    Paper,
    /// The square root of each dim and one short sample, to check that every case runs.
    Smoke,
}

/// Maximum elements of an operand in scale paper: enough to select the kernels for large operands.
const PAPER_ELEMENTS: usize = 4 * M;

impl Scale {
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Paper => "paper",
            Self::Smoke => "smoke",
        }
    }

    /// Scales a dim. Scale paper halves lengths of rows and columns, and limits others to [`PAPER_ELEMENTS`]. Scale smoke
    /// returns about the square root, rounded up to an even number, since some cases use half rows.
    pub fn dim(self, full: usize) -> usize {
        match self {
            Self::Smoke if full > 4 => full.isqrt().next_multiple_of(2),
            Self::Paper if (2048..=8192).contains(&full) => full / 2,
            Self::Paper => full.min(PAPER_ELEMENTS),
            _ => full,
        }
    }

    /// Scales all dims. Scale paper keeps the length of rows and reduces their number.
    pub fn dims<const N: usize>(self, full: [usize; N]) -> [usize; N] {
        if self != Self::Paper {
            return full.map(|dim| self.dim(dim));
        }
        let mut dims = full;
        for index in 0..N {
            let elements: usize = dims.iter().product();
            let divisor = elements.div_ceil(PAPER_ELEMENTS).next_power_of_two().min(dims[index]);
            dims[index] /= divisor;
        }
        dims
    }
}

/// Row of the results, and how it is measured.
pub struct Case {
    pub group: &'static str,
    pub name: &'static str,
    pub dtype: &'static str,
    pub shape: String,
    /// Minimum number of bytes that must be read and written.
    pub bytes: Option<u64>,
    /// Number of floating-point operations.
    pub flops: Option<u64>,
    /// Elements of all operands. Cases with many elements are skipped on the CPU device.
    pub elements: usize,
    /// Elements of the largest operand.
    pub largest: usize,
    /// True if only the ROCm device supports the case.
    pub only_rocm: bool,
    pub prepare: Box<Prepare>,
}

impl Case {
    pub fn label(&self) -> String {
        format!("{} {} {}", self.name, self.dtype, self.shape)
    }

    pub fn bytes(&mut self, bytes: usize) -> &mut Self {
        self.bytes = Some(bytes as u64);
        self
    }

    pub fn flops(&mut self, flops: usize) -> &mut Self {
        self.flops = Some(flops as u64);
        self
    }
}

/// Operand of an operation, which is created on the device.
#[derive(Clone)]
pub struct Operand {
    dims: Vec<usize>,
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    /// Normally distributed numbers of this dtype.
    Random(DType),
    /// Integers from 0 to below a bound, of this dtype.
    Below(usize, DType),
    /// 0, and negative infinity above the diagonal.
    Causal(DType),
}

/// Returns an operand of normally distributed values.
pub fn random(dtype: DType, dims: impl Into<Vec<usize>>) -> Operand {
    Operand { dims: dims.into(), content: Content::Random(dtype) }
}

/// Returns an operand of indices below `bound`.
pub fn below(bound: usize, dtype: DType, dims: impl Into<Vec<usize>>) -> Operand {
    Operand { dims: dims.into(), content: Content::Below(bound, dtype) }
}

/// Returns a causal mask for `length` positions, which is added to attention scores.
pub fn causal_mask(dtype: DType, length: usize) -> Operand {
    Operand { dims: vec![length, length], content: Content::Causal(dtype) }
}

impl Operand {
    fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    fn make(&self, device: &Device) -> Result<Tensor> {
        let dims = self.dims.as_slice();
        match self.content {
            Content::Random(dtype) => Tensor::randn(0f32, 1f32, dims, device)?.to_dtype(dtype),
            // 0.999 prevents rounding up to the bound.
            Content::Below(bound, dtype) => {
                Tensor::rand(0f32, 1f32, dims, device)?.affine(0.999 * bound as f64, 0.)?.to_dtype(dtype)
            }
            Content::Causal(dtype) => {
                let length = dims[0];
                let positions = (0..length * length).map(|at| (at / length, at % length));
                let mask = positions.map(|(row, column)| if column > row { f32::NEG_INFINITY } else { 0. });
                Tensor::from_iter(mask, device)?.reshape(dims)?.to_dtype(dtype)
            }
        }
    }
}

/// List of cases of a scale.
pub struct Cases {
    pub scale: Scale,
    pub list: Vec<Case>,
}

impl Cases {
    /// Adds an operation on operands that are created once.
    pub fn operation<const N: usize>(
        &mut self,
        [group, name]: [&'static str; 2],
        dtype: DType,
        shape: impl Into<String>,
        operands: [Operand; N],
        operation: impl Fn(&[Tensor; N]) -> Result<Tensor> + Copy + Sync + 'static,
    ) -> &mut Case {
        let elements = operands.iter().map(Operand::elements).sum();
        let largest = operands.iter().map(Operand::elements).max().unwrap_or_default();
        let case = self.work([group, name], dtype.as_str(), shape, move |device| {
            let operands: Vec<Tensor> = operands.iter().map(|o| o.make(device)).collect::<Result<_>>()?;
            let operands: [Tensor; N] = operands.try_into().map_err(|_| {
                candle_core::Error::msg("the number of operands differs from the declared one")
            })?;
            Ok(Box::new(move || operation(&operands).map(|result| drop(black_box(result)))))
        });
        (case.elements, case.largest) = (elements, largest);
        case
    }

    /// Adds the work that `prepare` returns for a device.
    pub fn work(
        &mut self,
        [group, name]: [&'static str; 2],
        dtype: &'static str,
        shape: impl Into<String>,
        prepare: impl Fn(&Device) -> Result<Work> + Sync + 'static,
    ) -> &mut Case {
        let (shape, prepare) = (shape.into(), Box::new(prepare));
        let (bytes, flops, elements, largest, only_rocm) = (None, None, 0, 0, false);
        let case = Case { group, name, dtype, shape, bytes, flops, elements, largest, only_rocm, prepare };
        self.list.push(case);
        let last = self.list.len() - 1;
        &mut self.list[last]
    }
}

/// Formats a number of elements for a shape's name: 64M, 1K, 16.
pub fn count_name(elements: usize) -> String {
    match elements {
        n if n >= M && n.is_multiple_of(M) => format!("{}M", n / M),
        n if n >= 1024 && n.is_multiple_of(1024) => format!("{}K", n / 1024),
        n => n.to_string(),
    }
}

/// Formats dims for a shape's name: 4096x128.
pub fn dims_name(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
    dims.join("x")
}
