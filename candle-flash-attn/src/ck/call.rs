//! Selects an instance of Composable Kernel for an attention problem, and launches it.
use candle::rocm::{KernelArg, LaunchConfig, RocmDevice};
use candle::Result;

use super::interface::{
    Arguments, Common, Dense, Element, Instance, Part, Sequences, Statistics, Unmasked, Window, KERNEL,
    THREADS,
};
use super::library::Library;

/// CK's `GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT`: the last query is aligned with the last key.
const FROM_BOTTOM_RIGHT: i32 = 2;
/// Required alignment of strides, in elements: the kernels load vectors of 16 bytes.
const ALIGNMENT: usize = 8;
/// Maximum bytes of one head, which the kernels address with 31 bits.
const MAX_HEAD_BYTES: usize = 1 << 31;

/// Queries, keys, values or the result in device memory. Rows are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Device address of the first element.
    pub address: u64,
    /// Stride between rows, in elements.
    pub row: usize,
    /// Stride between heads, in elements.
    pub head: usize,
    /// Stride between batches, in elements; unused for variable-length sequences.
    pub batch: usize,
}

/// Logarithms of the sums of exponentials (LSE) as f32; the queries of a head are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSumExp {
    /// Device address of the first element.
    pub address: u64,
    /// Stride between heads, in elements.
    pub head: usize,
    /// Stride between batches, in elements; unused for variable-length sequences.
    pub batch: usize,
}

/// Start offsets of variable-length sequences: device addresses of `batch + 1` i32 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceStarts {
    /// Start offsets of the queries.
    pub queries: u64,
    /// Start offsets of the keys and values.
    pub keys: u64,
}

/// One call of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Element type of all operands.
    pub element: Element,
    /// Number of sequences.
    pub batch: usize,
    /// Number of query heads.
    pub heads: usize,
    /// Number of key and value heads; `heads` must be a multiple of it.
    pub key_heads: usize,
    /// Queries per sequence, or of the longest sequence.
    pub queries: usize,
    /// Keys per sequence, or of the longest sequence.
    pub keys: usize,
    /// Head width of queries and keys.
    pub width: usize,
    /// Head width of values.
    pub value_width: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Number of keys visible before the diagonal; `None` for all.
    pub left: Option<usize>,
    /// Number of keys visible after the diagonal; `None` for all, 0 for a causal mask.
    pub right: Option<usize>,
    /// Queries.
    pub q: Operand,
    /// Keys.
    pub k: Operand,
    /// Values.
    pub v: Operand,
    /// The result.
    pub o: Operand,
    /// Second output: the log-sum-exp of each query.
    pub log_sums: LogSumExp,
    /// Start offsets of variable-length sequences; `None` for a dense batch.
    pub starts: Option<SequenceStarts>,
}

/// Reason why no instance supports a problem.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Composable Kernel's attention does not cover this: {0}")]
pub struct Unsupported(String);

/// A prepared kernel launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The instance to launch.
    pub instance: Instance,
    /// Arguments of the kernel.
    pub arguments: KernelArguments,
    /// Number of workgroups in x, y and z: heads, tiles of queries, sequences.
    pub grid: (u32, u32, u32),
}

/// Arguments of each kind of instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KernelArguments {
    /// A dense batch.
    Dense(Arguments<Unmasked, Dense>),
    /// A dense batch with a window or causal mask.
    DenseMasked(Arguments<Window, Dense>),
    /// Variable-length sequences.
    Varlen(Arguments<Unmasked, Sequences>),
    /// Variable-length sequences with a window or causal mask.
    VarlenMasked(Arguments<Window, Sequences>),
}

// SAFETY: it and its parts are `repr(C)`. `cargo xtask ck` makes the compiler assert the size and offsets of CK's struct.
unsafe impl<M: Part, S: Part> KernelArg for Arguments<M, S> {}

impl Problem {
    /// Returns the instance for this problem, without checking the output operand.
    ///
    /// # Errors
    /// [`Unsupported`] names the size, stride or address that no instance supports.
    pub fn instance(&self) -> std::result::Result<Instance, Unsupported> {
        let (width, value_width) = (self.width, self.value_width);
        let max_width = Instance::width_for(width.max(value_width))
            .filter(|_| width % ALIGNMENT == 0 && value_width % ALIGNMENT == 0 && width * value_width > 0)
            .ok_or_else(|| {
                Unsupported(format!("head widths {width} and {value_width}, not multiples of 8 up to 256"))
            })?;
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            return Err(Unsupported(format!("{} heads for {} key heads", self.heads, self.key_heads)));
        }
        // The kernels find the row maximum before they scale, which is only valid for a positive scale.
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return Err(Unsupported(format!("a scale of {}", self.scale)));
        }
        self.check("queries", self.q, self.queries)?;
        self.check("keys", self.k, self.keys)?;
        self.check("values", self.v, self.keys)?;
        let (varlen, masked) = (self.starts.is_some(), self.left.is_some() || self.right.is_some());
        Ok(Instance { element: self.element, width: max_width, varlen, masked })
    }

    fn check(&self, name: &str, operand: Operand, rows: usize) -> std::result::Result<(), Unsupported> {
        let Operand { address, row, head, batch } = operand;
        let strides = [row, head, if self.starts.is_some() { 0 } else { batch }];
        if address % 16 != 0 || strides.iter().any(|stride| stride % ALIGNMENT != 0) {
            return Err(Unsupported(format!(
                "{name} at 0x{address:x} with strides {strides:?}, which are not aligned to 16 bytes"
            )));
        }
        if row.saturating_mul(rows).saturating_mul(2) >= MAX_HEAD_BYTES {
            return Err(Unsupported(format!("{rows} rows of {name} {row} elements apart, 2 GiB or more")));
        }
        Ok(())
    }

    /// Prepares the launch.
    ///
    /// # Errors
    /// Like [`Self::instance`].
    pub fn call(&self) -> std::result::Result<Call, Unsupported> {
        let instance = self.instance()?;
        self.check("results", self.o, self.queries)?;
        let tiles = self.queries.div_ceil(instance.tile().queries);
        let count = |n: usize| u32::try_from(n).map_err(|_| Unsupported(format!("{n} workgroups")));
        let grid = (count(self.heads)?, count(tiles)?, count(self.batch)?);
        let too_large = |n| Unsupported(format!("{n} as a length or a stride"));
        let arguments = self.arguments(instance.masked).map_err(too_large)?;
        Ok(Call { instance, arguments, grid })
    }

    /// Builds the kernel's arguments. The error is a number that does not fit into CK's 32-bit fields.
    fn arguments(&self, masked: bool) -> std::result::Result<KernelArguments, usize> {
        let int = |n: usize| i32::try_from(n).map_err(|_| n);
        let common = Common {
            q_ptr: self.q.address,
            k_ptr: self.k.address,
            v_ptr: self.v.address,
            o_ptr: self.o.address,
            seqlen_q: int(self.queries)?,
            seqlen_k: int(self.keys)?,
            hdim_q: int(self.width)?,
            hdim_v: int(self.value_width)?,
            num_head_q: int(self.heads)?,
            nhead_ratio_qk: int(self.heads / self.key_heads)?,
            // The kernels use exp2.
            scale_s: self.scale * std::f32::consts::LOG2_E,
            stride_q: int(self.q.row)?,
            stride_k: int(self.k.row)?,
            stride_v: int(self.v.row)?,
            stride_o: int(self.o.row)?,
            nhead_stride_q: int(self.q.head)?,
            nhead_stride_k: int(self.k.head)?,
            nhead_stride_v: int(self.v.head)?,
            nhead_stride_o: int(self.o.head)?,
        };
        let side = |keys: Option<usize>| keys.map_or(Ok(-1), int);
        let window = Window {
            window_size_left: side(self.left)?,
            window_size_right: side(self.right)?,
            mask_type: FROM_BOTTOM_RIGHT,
        };
        let mut statistics = Statistics {
            lse_ptr: self.log_sums.address,
            nhead_stride_lse: int(self.log_sums.head)?,
            batch_stride_lse: 0,
        };
        if let Some(SequenceStarts { queries, keys }) = self.starts {
            let place = Sequences { seqstart_q_ptr: queries, seqstart_k_ptr: keys, seqlen_k_ptr: 0 };
            return Ok(if masked {
                KernelArguments::VarlenMasked(Arguments { common, mask: window, statistics, place })
            } else {
                KernelArguments::Varlen(Arguments { common, mask: Unmasked {}, statistics, place })
            });
        }
        statistics.batch_stride_lse = int(self.log_sums.batch)?;
        let place = Dense {
            batch_stride_q: int(self.q.batch)?,
            batch_stride_k: int(self.k.batch)?,
            batch_stride_v: int(self.v.batch)?,
            batch_stride_o: int(self.o.batch)?,
        };
        Ok(if masked {
            KernelArguments::DenseMasked(Arguments { common, mask: window, statistics, place })
        } else {
            KernelArguments::Dense(Arguments { common, mask: Unmasked {}, statistics, place })
        })
    }
}

impl Call {
    /// Enqueues the kernel on the device's stream.
    ///
    /// # Errors
    /// If `library` lacks the instance, or HIP rejects the code object or the launch.
    ///
    /// # Safety
    /// All addresses must belong to `device` and cover the rows that the problem's sizes and strides describe.
    pub unsafe fn run(&self, device: &RocmDevice, library: &Library) -> Result<()> {
        let Some(object) = library.object(self.instance) else {
            let (name, arch) = (self.instance.name(), library.arch());
            candle::bail!(
                "Composable Kernel's {name} was not built for {arch}; run `cargo xtask ck --arch {arch} --instances {name}`"
            );
        };
        let config = LaunchConfig { grid: self.grid, block: (THREADS, 1, 1), lds_bytes: 0 };
        let launch = device.custom_kernel(&object.name, &object.bytes, KERNEL)?.launch(config);
        // SAFETY: the arguments match the instance, whose layout was asserted at compile time; the caller guarantees the
        // addresses.
        unsafe {
            match &self.arguments {
                KernelArguments::Dense(arguments) => launch.arg(arguments).run(),
                KernelArguments::DenseMasked(arguments) => launch.arg(arguments).run(),
                KernelArguments::Varlen(arguments) => launch.arg(arguments).run(),
                KernelArguments::VarlenMasked(arguments) => launch.arg(arguments).run(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a problem of 2 x 300 queries of 8 heads and 2 x 500 keys of 2 heads, with widths 96 and 80.
    fn problem() -> Problem {
        let operand = |address, rows, heads, width| Operand {
            address,
            row: heads * width,
            head: width,
            batch: rows * heads * width,
        };
        Problem {
            element: Element::Bf16,
            batch: 2,
            heads: 8,
            key_heads: 2,
            queries: 300,
            keys: 500,
            width: 96,
            value_width: 80,
            scale: 0.5,
            left: None,
            right: Some(0),
            q: operand(0x1000, 300, 8, 96),
            k: operand(0x2000, 500, 2, 96),
            v: operand(0x3000, 500, 2, 80),
            o: operand(0x4000, 300, 8, 80),
            log_sums: LogSumExp { address: 0x5000, head: 300, batch: 2400 },
            starts: None,
        }
    }

    /// Returns the 32-bit words of an argument, with zeros for the words in `padding`.
    fn words<T>(arguments: &T, padding: &[usize]) -> Vec<u32> {
        let at = std::ptr::from_ref(arguments).cast::<u32>();
        let word = |n: usize| match padding.contains(&n) {
            true => 0,
            // SAFETY: the word is initialized, lies within the argument, and is aligned.
            false => unsafe { at.add(n).read() },
        };
        (0..size_of::<T>() / 4).map(word).collect()
    }

    #[test]
    fn a_dense_causal_call_is_laid_out_as_ck_does() {
        let call = problem().call().unwrap();
        assert_eq!(call.instance.name(), "bf16-128-dense-masked");
        // One workgroup per head, tile of 128 queries, and sequence.
        assert_eq!(call.grid, (8, 3, 2));
        let KernelArguments::DenseMasked(arguments) = call.arguments else { panic!("{:?}", call.arguments) };
        // Words 23 and 27 are padding after the first two bases.
        let words = words(&arguments, &[23, 27]);
        assert_eq!(words.len() * 4, 144);
        let expected = [
            [0x1000, 0, 0x2000, 0],
            [0x3000, 0, 0x4000, 0],
            [300, 500, 96, 80],
            // Heads, query heads per key head, scale, then row strides.
            [8, 4, (0.5 * std::f32::consts::LOG2_E).to_bits(), 768],
            [192, 160, 640, 96],
            [96, 80, 80, 0],
            // Window: all on the left, none on the right, from the bottom right.
            [u32::MAX, 0, 2, 0],
            [0x5000, 0, 300, 2400],
            [230_400, 96_000, 80_000, 192_000],
        ];
        assert_eq!(words, expected.concat());
    }

    #[test]
    fn variable_length_calls_have_no_batch_strides() {
        let starts = Some(SequenceStarts { queries: 0x6000, keys: 0x7000 });
        let call = Problem { starts, right: None, width: 64, value_width: 8, ..problem() }.call().unwrap();
        assert_eq!(call.instance.name(), "bf16-64-varlen-full");
        let KernelArguments::Varlen(arguments) = call.arguments else { panic!("{:?}", call.arguments) };
        let words = words(&arguments, &[23]);
        assert_eq!(words[24..], [0x5000, 0, 300, 0, 0x6000, 0, 0x7000, 0, 0, 0]);
    }

    #[test]
    fn sizes_are_those_of_the_compiled_kernels() {
        // From the metadata of objects compiled by clang-22 from flash-attn 2.8.3.
        let sizes =
            |masked, varlen| Instance { element: Element::F16, width: 64, varlen, masked }.layout().bytes;
        assert_eq!(
            [sizes(false, false), sizes(true, false), sizes(false, true), sizes(true, true)],
            [128, 144, 136, 152]
        );
    }

    #[test]
    fn unsupported_problems_are_explained() {
        let q = problem().q;
        for (problem, part) in [
            (Problem { width: 264, ..problem() }, "head widths 264 and 80"),
            (Problem { width: 92, ..problem() }, "head widths 92 and 80"),
            (Problem { value_width: 0, ..problem() }, "head widths 96 and 0"),
            (Problem { key_heads: 3, ..problem() }, "8 heads for 3"),
            (Problem { scale: -0.5, ..problem() }, "a scale of -0.5"),
            (Problem { scale: f32::NAN, ..problem() }, "a scale of NaN"),
            (Problem { o: Operand { address: 0x4004, ..q }, ..problem() }, "results at 0x4004"),
            (Problem { q: Operand { address: 0x1008, ..q }, ..problem() }, "queries at 0x1008"),
            (Problem { q: Operand { head: 100, ..q }, ..problem() }, "strides [768, 100, 230400]"),
            (Problem { keys: 1 << 23, ..problem() }, "8388608 rows of keys"),
            (
                Problem { q: Operand { batch: 1 << 33, ..q }, ..problem() },
                "8589934592 as a length or a stride",
            ),
        ] {
            let text = problem.call().unwrap_err().to_string();
            assert!(text.contains(part), "{part:?} is missing in: {text}");
        }
    }
}
