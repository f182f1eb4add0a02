//! From a problem to the launch of an instance.
use candle::rocm::{KernelArg, LaunchConfig, RocmDevice};
use candle::Result;

use super::interface::{
    Arguments, Common, Dense, Element, Instance, Part, Sequences, Statistics, Unmasked, Window, KERNEL,
    THREADS,
};
use super::library::Library;

/// CK's `GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT`: the last query sees the last key.
const FROM_BOTTOM_RIGHT: i32 = 2;
/// Vectors of 16 bytes are loaded.
const ALIGNMENT: usize = 8;
/// Buffers are addressed by 31 bits within one head.
const MOST_BYTES: usize = 1 << 31;

/// Queries, keys, values or the result in device memory: rows of elements without gaps within.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Of the first element.
    pub address: u64,
    /// Elements from a row to that of the next query or key.
    pub row: usize,
    /// Elements from a head to the next.
    pub head: usize,
    /// Elements from a batch to the next; unused where sequences have their own lengths.
    pub batch: usize,
}

/// Logarithms of the sums of exponentials, f32: of each head those of all queries, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSums {
    /// Of the first.
    pub address: u64,
    /// Elements from a head to the next.
    pub head: usize,
    /// Elements from a batch to the next; unused where sequences have their own lengths.
    pub batch: usize,
}

/// Where sequences of their own lengths begin: device addresses of `batch + 1` i32 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starts {
    /// Of queries.
    pub queries: u64,
    /// Of keys and values.
    pub keys: u64,
}

/// One call of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Of all operands.
    pub element: Element,
    /// Sequences.
    pub batch: usize,
    /// Of queries.
    pub heads: usize,
    /// Of keys and values; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Of each sequence, or of the longest.
    pub queries: usize,
    /// Of each sequence, or of the longest.
    pub keys: usize,
    /// Of a query or key.
    pub width: usize,
    /// Of a value.
    pub value_width: usize,
    /// Of products of queries and keys.
    pub scale: f32,
    /// Keys that are seen before the one that lies diagonally below; all if there is no number.
    pub left: Option<usize>,
    /// The same behind it: 0 is causal.
    pub right: Option<usize>,
    /// Queries.
    pub q: Operand,
    /// Keys.
    pub k: Operand,
    /// Values.
    pub v: Operand,
    /// The result.
    pub o: Operand,
    /// Written besides.
    pub log_sums: LogSums,
    /// Where sequences begin that have their own lengths.
    pub starts: Option<Starts>,
}

/// Why no instance covers a problem.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Composable Kernel's attention does not cover this: {0}")]
pub struct Uncovered(String);

/// A launch: what, with what, of how many workgroups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// The kernel.
    pub instance: Instance,
    /// What it is passed.
    pub passed: Passed,
    /// Workgroups in x, y and z: heads, tiles of queries, sequences.
    pub grid: (u32, u32, u32),
}

/// The argument of each kind of instance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Passed {
    /// A dense batch.
    Dense(Arguments<Unmasked, Dense>),
    /// A dense batch with a window.
    DenseMasked(Arguments<Window, Dense>),
    /// Sequences of their own lengths.
    Varlen(Arguments<Unmasked, Sequences>),
    /// Sequences of their own lengths with a window.
    VarlenMasked(Arguments<Window, Sequences>),
}

// SAFETY: it is `repr(C)` as its parts are, and `cargo xtask ck` has the compiler assert size and offsets of CK's structure.
unsafe impl<M: Part, S: Part> KernelArg for Arguments<M, S> {}

impl Problem {
    /// The instance that takes it; where results go does not matter.
    ///
    /// # Errors
    /// [`Uncovered`] says which size, stride or address no instance takes.
    pub fn instance(&self) -> std::result::Result<Instance, Uncovered> {
        let (width, value_width) = (self.width, self.value_width);
        let most = Instance::width_for(width.max(value_width))
            .filter(|_| width % ALIGNMENT == 0 && value_width % ALIGNMENT == 0 && width * value_width > 0)
            .ok_or_else(|| {
                Uncovered(format!("head widths {width} and {value_width}, multiples of 8 up to 256 are"))
            })?;
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            return Err(Uncovered(format!("{} heads for {} of keys", self.heads, self.key_heads)));
        }
        // The kernels take the largest product before they multiply.
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return Err(Uncovered(format!("a scale of {}", self.scale)));
        }
        self.placed("queries", self.q, self.queries)?;
        self.placed("keys", self.k, self.keys)?;
        self.placed("values", self.v, self.keys)?;
        let (varlen, masked) = (self.starts.is_some(), self.left.is_some() || self.right.is_some());
        Ok(Instance { element: self.element, width: most, varlen, masked })
    }

    fn placed(&self, name: &str, operand: Operand, rows: usize) -> std::result::Result<(), Uncovered> {
        let Operand { address, row, head, batch } = operand;
        let strides = [row, head, if self.starts.is_some() { 0 } else { batch }];
        if address % 16 != 0 || strides.iter().any(|stride| stride % ALIGNMENT != 0) {
            return Err(Uncovered(format!(
                "{name} at 0x{address:x} with strides {strides:?}, not of 16 bytes"
            )));
        }
        if row.saturating_mul(rows).saturating_mul(2) >= MOST_BYTES {
            return Err(Uncovered(format!("{rows} rows of {name} that lie {row} elements apart")));
        }
        Ok(())
    }

    /// The launch that solves it.
    ///
    /// # Errors
    /// As [`Self::instance`].
    pub fn call(&self) -> std::result::Result<Call, Uncovered> {
        let instance = self.instance()?;
        self.placed("results", self.o, self.queries)?;
        let tiles = self.queries.div_ceil(instance.tile().queries);
        let count = |n: usize| u32::try_from(n).map_err(|_| Uncovered(format!("{n} workgroups")));
        let grid = (count(self.heads)?, count(tiles)?, count(self.batch)?);
        let passed =
            self.passed(instance.masked).map_err(|n| Uncovered(format!("{n} as a length or a stride")))?;
        Ok(Call { instance, passed, grid })
    }

    /// The argument; what does not fit into CK's 32-bit numbers is the error.
    fn passed(&self, masked: bool) -> std::result::Result<Passed, usize> {
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
            // The kernels compute powers of two.
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
        if let Some(Starts { queries, keys }) = self.starts {
            let place = Sequences { seqstart_q_ptr: queries, seqstart_k_ptr: keys, seqlen_k_ptr: 0 };
            return Ok(if masked {
                Passed::VarlenMasked(Arguments { common, mask: window, statistics, place })
            } else {
                Passed::Varlen(Arguments { common, mask: Unmasked {}, statistics, place })
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
            Passed::DenseMasked(Arguments { common, mask: window, statistics, place })
        } else {
            Passed::Dense(Arguments { common, mask: Unmasked {}, statistics, place })
        })
    }
}

impl Call {
    /// Enqueues the kernel on the device's stream; without any query or sequence nothing happens.
    ///
    /// # Errors
    /// If `library` lacks the instance, or HIP refuses the code object or the launch.
    ///
    /// # Safety
    /// The problem's addresses must be the device's, and cover all rows that its sizes and strides describe.
    pub unsafe fn run(&self, device: &RocmDevice, library: &Library) -> Result<()> {
        let Some(object) = library.object(self.instance) else {
            let (name, arch) = (self.instance.name(), library.arch());
            candle::bail!(
                "Composable Kernel's {name} was not built for {arch}: cargo xtask ck --arch {arch} --instances {name}"
            );
        };
        let config = LaunchConfig { grid: self.grid, block: (THREADS, 1, 1), lds_bytes: 0 };
        let launch = device.custom_kernel(&object.name, &object.bytes, KERNEL)?.launch(config);
        // SAFETY: the argument is the instance's, whose layout was asserted when it was compiled; the caller vouches for
        // the addresses.
        unsafe {
            match &self.passed {
                Passed::Dense(passed) => launch.arg(passed).run(),
                Passed::DenseMasked(passed) => launch.arg(passed).run(),
                Passed::Varlen(passed) => launch.arg(passed).run(),
                Passed::VarlenMasked(passed) => launch.arg(passed).run(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 x 300 queries of 8 heads, 2 x 500 keys of 2 heads, width 96 and 80, as Candle's shape (batch, row, head, width).
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
            log_sums: LogSums { address: 0x5000, head: 300, batch: 2400 },
            starts: None,
        }
    }

    /// The 32-bit words of an argument; those of `padding` count as zero.
    fn words<T>(passed: &T, padding: &[usize]) -> Vec<u32> {
        let at = std::ptr::from_ref(passed).cast::<u32>();
        let word = |n: usize| match padding.contains(&n) {
            true => 0,
            // SAFETY: it lies within the argument, which is aligned to eight bytes, and is no padding.
            false => unsafe { at.add(n).read() },
        };
        (0..size_of::<T>() / 4).map(word).collect()
    }

    #[test]
    fn a_dense_causal_call_is_laid_out_as_ck_does() {
        let call = problem().call().unwrap();
        assert_eq!(call.instance.name(), "bf16-128-dense-masked");
        // One workgroup for each head, 128 queries and sequence.
        assert_eq!(call.grid, (8, 3, 2));
        let Passed::DenseMasked(passed) = call.passed else { panic!("{:?}", call.passed) };
        // After the first two bases.
        let words = words(&passed, &[23, 27]);
        assert_eq!(words.len() * 4, 144);
        let expected = [
            [0x1000, 0, 0x2000, 0],
            [0x3000, 0, 0x4000, 0],
            [300, 500, 96, 80],
            // Heads, queries' heads for one of keys, scale, then strides of rows.
            [8, 4, (0.5 * std::f32::consts::LOG2_E).to_bits(), 768],
            [192, 160, 640, 96],
            [96, 80, 80, 0],
            // All on the left, none on the right, from the bottom right.
            [u32::MAX, 0, 2, 0],
            [0x5000, 0, 300, 2400],
            [230_400, 96_000, 80_000, 192_000],
        ];
        assert_eq!(words, expected.concat());
    }

    #[test]
    fn sequences_of_their_own_lengths_have_no_batch_strides() {
        let starts = Some(Starts { queries: 0x6000, keys: 0x7000 });
        let call = Problem { starts, right: None, width: 64, value_width: 8, ..problem() }.call().unwrap();
        assert_eq!(call.instance.name(), "bf16-64-varlen-full");
        let Passed::Varlen(passed) = call.passed else { panic!("{:?}", call.passed) };
        let words = words(&passed, &[23]);
        assert_eq!(words[24..], [0x5000, 0, 300, 0, 0x6000, 0, 0x7000, 0, 0, 0]);
    }

    #[test]
    fn sizes_are_those_of_the_compiled_kernels() {
        // What the metadata of objects say that clang-22 made of flash-attn 2.8.3.
        let sizes =
            |masked, varlen| Instance { element: Element::F16, width: 64, varlen, masked }.layout().bytes;
        assert_eq!(
            [sizes(false, false), sizes(true, false), sizes(false, true), sizes(true, true)],
            [128, 144, 136, 152]
        );
    }

    #[test]
    fn what_no_instance_takes_is_said() {
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
