//! A test case: its parameters, its tensors, and the comparison with the formula.
use candle::{DType, Device, Result, Tensor};
use rand::seq::SliceRandom;
use rand::{rngs::StdRng, Rng, SeedableRng};

use crate::attention_formula::wide;
use crate::formula;
use crate::functions::{Function, FUNCTIONS};

/// Memory layout of sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// A batch of sequences of one length.
    Dense,
    /// Packed variable-length sequences.
    Sequences,
    /// Packed queries, with keys and values in pages of this many rows.
    Pages(usize),
}

/// Memory layout of an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum View {
    Plain,
    /// Heads are an outer dim of positions.
    Heads,
    /// Rows that are not aligned to 16 bytes.
    Offset,
    /// Views of one tensor with the heads of q, k and v.
    Fused,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub dtype: DType,
    pub form: Form,
    /// Number of queries and keys of each sequence.
    pub sequences: Vec<(usize, usize)>,
    /// Number of query heads and of key heads.
    pub heads: (usize, usize),
    /// Head width of keys and of values.
    pub widths: (usize, usize),
    pub window: (Option<usize>, Option<usize>),
    pub softcap: Option<f32>,
    pub alibi: bool,
    /// If true, each head has a sink.
    pub sinks: bool,
    /// Half-open ranges of positions that see each other, the same number for each sequence.
    pub ranges: Vec<Vec<(i32, i32)>>,
    pub view: View,
    /// Index among the functions that support this case.
    pub function: usize,
    pub seed: u64,
}

/// Host values, rounded to the dtype: (all queries, heads, width) etc.
pub struct Host {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    pub slopes: Vec<f32>,
    pub sinks: Vec<f32>,
}

/// Arguments of the functions, on the device.
pub struct Inputs {
    /// Tensors of which q, k and v are views.
    pub bases: Vec<Tensor>,
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub slopes: Option<Tensor>,
    pub sinks: Tensor,
    pub starts: [Tensor; 2],
    pub table: Option<Tensor>,
    pub ranges: Option<Tensor>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            dtype: DType::F16,
            form: Form::Dense,
            sequences: vec![(37, 37)],
            heads: (2, 2),
            widths: (64, 64),
            window: (None, None),
            softcap: None,
            alibi: false,
            sinks: false,
            ranges: Vec::new(),
            view: View::Plain,
            function: 0,
            seed: 1,
        }
    }
}

/// Maximum and mean square error of results.
#[derive(Clone, Copy, Debug)]
pub struct ErrorSize {
    pub most: f64,
    pub mean_square: f64,
}

/// The errors of a case, and those of the plain formula in f32, rounded once.
pub struct Errors {
    pub function: &'static str,
    pub largest: f64,
    pub ours: ErrorSize,
    pub plain: ErrorSize,
}

impl Case {
    pub fn scale(&self) -> f32 {
        (self.widths.0 as f32).sqrt().recip()
    }

    pub fn causal(&self) -> bool {
        self.window.1.is_some()
    }

    pub fn most(&self) -> [usize; 2] {
        let (queries, keys): (Vec<_>, Vec<_>) = self.sequences.iter().copied().unzip();
        [queries, keys].map(|lengths| lengths.into_iter().max().unwrap_or(0))
    }

    /// Returns true if a query at a position sees a key. A window above the maximum number of keys is no limit.
    pub fn sees(&self, sequence: usize, position: i64, key: i64) -> bool {
        let within = |window: Option<usize>, distance: i64| {
            window.filter(|size| *size <= self.most()[1]).is_none_or(|size| distance <= size as i64)
        };
        let ranges = self.ranges.get(sequence).into_iter().flatten();
        let together = |&(from, to): &(i32, i32)| {
            [position, key].iter().all(|at| (i64::from(from)..i64::from(to)).contains(at))
        };
        (within(self.window.0, position - key) && within(self.window.1, key - position))
            || ranges.into_iter().any(together)
    }

    pub fn functions(&self) -> Vec<&'static Function> {
        FUNCTIONS.iter().filter(|function| function.supports(self)).collect()
    }

    /// Returns the number of multiplications on the software GPU.
    pub fn products(&self) -> usize {
        let pairs: usize =
            self.sequences.iter().map(|(queries, keys)| queries.next_multiple_of(16) * keys).sum();
        pairs * self.heads.0 * (self.widths.0 + self.widths.1)
    }

    pub fn host(&self, rng: &mut StdRng) -> Result<Host> {
        let total = |of: fn(&(usize, usize)) -> usize| self.sequences.iter().map(of).sum::<usize>();
        let (queries, keys) = (total(|s| s.0), total(|s| s.1));
        let mut random = |rows: usize, columns: usize, limit: f32| -> Result<Vec<f32>> {
            let values: Vec<f32> = (0..rows * columns).map(|_| rng.random_range(-limit..limit)).collect();
            Tensor::from_vec(values, rows * columns, &Device::Cpu)?
                .to_dtype(self.dtype)?
                .to_dtype(DType::F32)?
                .to_vec1()
        };
        let ((heads, key_heads), (width, value_width)) = (self.heads, self.widths);
        let q = random(queries, heads * width, 3.0)?;
        let k = random(keys, key_heads * width, 2.0)?;
        let v = random(keys, key_heads * value_width, 2.0)?;
        let slopes =
            if self.alibi { (1..=heads).map(|head| 0.5f32.powi(head as i32)).collect() } else { Vec::new() };
        // Below, among and far above the scores of keys.
        let sinks =
            if self.sinks { (0..heads).map(|head| [-2.0, 1.5, 7.0][head % 3]).collect() } else { Vec::new() };
        Ok(Host { q, k, v, slopes, sinks })
    }

    /// Returns a tensor (rows, heads, width), or with the first dim split in two.
    fn tensor(&self, values: &[f32], split: Option<usize>, heads: usize, width: usize) -> Result<Tensor> {
        let rows = values.len() / (heads * width);
        let t =
            Tensor::from_vec(values.to_vec(), (rows, heads, width), &Device::Cpu)?.to_dtype(self.dtype)?;
        match split {
            Some(first) => t.reshape((first, rows / first.max(1), heads, width)),
            None => Ok(t),
        }
    }

    /// Returns the tensors with the same values, of which q, k and v are views.
    fn bases(&self, operands: [&Tensor; 3]) -> Result<Vec<Tensor>> {
        let heads = |t: &Tensor| t.rank() - 2;
        let bases = operands.into_iter().map(|t| match self.view {
            View::Heads => t.transpose(heads(t) - 1, heads(t))?.contiguous(),
            View::Offset => {
                let mut dims = t.dims().to_vec();
                dims[heads(t) + 1] = 3;
                let before = Tensor::full(f32::NAN, dims, &Device::Cpu)?.to_dtype(self.dtype)?;
                Tensor::cat(&[&before, t], heads(t) + 1)
            }
            View::Plain | View::Fused => Ok(t.clone()),
        });
        let bases = bases.collect::<Result<Vec<_>>>()?;
        match self.view {
            View::Fused => Ok(vec![Tensor::cat(&bases, heads(operands[0]))?]),
            _ => Ok(bases),
        }
    }

    /// Returns q, k and v as views of `bases`.
    pub fn views(&self, bases: &[Tensor]) -> Result<[Tensor; 3]> {
        if let [all] = bases {
            let (heads, key_heads) = self.heads;
            let part = |first: usize, count: usize| all.narrow(all.rank() - 2, first, count);
            return Ok([part(0, heads)?, part(heads, key_heads)?, part(heads + key_heads, key_heads)?]);
        }
        let view = |t: &Tensor| {
            let heads = t.rank() - 2;
            match self.view {
                View::Heads => t.transpose(heads - 1, heads),
                View::Offset => t.narrow(heads + 1, 3, t.dim(heads + 1)? - 3),
                View::Plain | View::Fused => Ok(t.clone()),
            }
        };
        Ok([view(&bases[0])?, view(&bases[1])?, view(&bases[2])?])
    }

    /// Copies packed rows to pages in random order; rows outside of all sequences are NaN.
    fn in_pages(
        &self,
        rows: &[f32],
        per_row: usize,
        page: usize,
        table: &[Vec<u32>],
        pages: usize,
    ) -> Vec<f32> {
        let mut paged = vec![f32::NAN; pages * page * per_row];
        let mut first = 0;
        for (&(_, keys), table) in self.sequences.iter().zip(table) {
            for key in 0..keys {
                let at = (table[key / page] as usize * page + key % page) * per_row;
                paged[at..at + per_row].copy_from_slice(&rows[(first + key) * per_row..][..per_row]);
            }
            first += keys;
        }
        paged
    }

    pub fn inputs(&self, host: &Host, rng: &mut StdRng, device: &Device) -> Result<Inputs> {
        let ((heads, key_heads), (width, value_width)) = (self.heads, self.widths);
        let split = (self.form == Form::Dense).then_some(self.sequences.len());
        let q = self.tensor(&host.q, split, heads, width)?;
        let mut table = None;
        let (k, v) = match self.form {
            Form::Pages(page) => {
                let each: Vec<usize> = self.sequences.iter().map(|(_, keys)| keys.div_ceil(page)).collect();
                let most = each.iter().copied().max().unwrap_or(0).max(1);
                let mut order: Vec<u32> = (0..each.iter().sum::<usize>() as u32 + 2).collect();
                order.shuffle(rng);
                let pages = order.len();
                let mut entries = Vec::new();
                let tables: Vec<Vec<u32>> =
                    each.iter().map(|count| order.split_off(order.len() - count)).collect();
                for of in &tables {
                    // Invalid page numbers after those of a sequence, which must not be read.
                    entries.extend(of.iter().copied().chain(std::iter::repeat(u32::MAX)).take(most));
                }
                table = Some(Tensor::from_vec(entries, (tables.len(), most), device)?);
                let k = self.in_pages(&host.k, key_heads * width, page, &tables, pages);
                let v = self.in_pages(&host.v, key_heads * value_width, page, &tables, pages);
                (
                    self.tensor(&k, Some(pages), key_heads, width)?,
                    self.tensor(&v, Some(pages), key_heads, value_width)?,
                )
            }
            _ => (
                self.tensor(&host.k, split, key_heads, width)?,
                self.tensor(&host.v, split, key_heads, value_width)?,
            ),
        };
        let bases = self.bases([&q, &k, &v])?;
        let bases = bases.iter().map(|base| base.to_device(device)).collect::<Result<Vec<_>>>()?;
        let [q, k, v] = self.views(&bases)?;
        let starts = |of: fn(&(usize, usize)) -> usize| {
            let mut end = 0;
            let ends = self.sequences.iter().map(|sequence| {
                end += of(sequence) as u32;
                end
            });
            let starts: Vec<u32> = std::iter::once(0).chain(ends).collect();
            Tensor::new(starts, device)
        };
        let slopes = self.alibi.then(|| Tensor::new(host.slopes.as_slice(), device)).transpose()?;
        let sinks = Tensor::new(host.sinks.as_slice(), device)?;
        let ranges = match self.ranges.first() {
            Some(first) => {
                let flat: Vec<i32> =
                    self.ranges.iter().flatten().flat_map(|&(from, to)| [from, to]).collect();
                Some(Tensor::from_vec(flat, (self.ranges.len(), first.len(), 2), device)?)
            }
            None => None,
        };
        let starts = [starts(|s| s.0)?, starts(|s| s.1)?];
        Ok(Inputs { bases, q, k, v, slopes, sinks, starts, table, ranges })
    }

    /// Returns half an ulp of the dtype at x.
    fn half_ulp(&self, x: f64) -> f64 {
        let digits = match self.dtype {
            DType::F16 => 11,
            DType::BF16 => 8,
            _ => 24,
        };
        if x == 0.0 {
            0.0
        } else {
            2f64.powi(x.log2().floor() as i32 - digits)
        }
    }

    /// Computes the case on the device and with the formula, and compares.
    pub fn run(&self, device: &Device) -> Result<Errors> {
        let functions = self.functions();
        assert!(!functions.is_empty(), "no function supports {self:?}");
        let function = functions[self.function % functions.len()];
        let mut rng = StdRng::seed_from_u64(self.seed);
        let host = self.host(&mut rng)?;
        let inputs = self.inputs(&host, &mut rng, device)?;
        let (out, statistics) = (function.call)(self, &inputs)?;
        let (total, what) =
            (inputs.q.elem_count() / (self.heads.0 * self.widths.0), format!("{}: {self:?}", function.name));
        let mut dims = inputs.q.dims().to_vec();
        *dims.last_mut().unwrap() = self.widths.1;
        assert_eq!((out.dims(), out.dtype()), (dims.as_slice(), self.dtype), "{what}");
        let right = formula::attention::<f64>(self, &host);
        let got = wide(&out)?;
        let largest = right.out.iter().fold(0f64, |most, x| most.max(x.abs()));
        let plain = formula::attention::<f32>(self, &host).out;
        let plain =
            Tensor::from_vec(plain, got.len(), &Device::Cpu)?.to_dtype(DType::F32)?.to_dtype(self.dtype)?;
        let [ours, plain] = [off(&got, &right.out), off(&wide(&plain)?, &right.out)];
        let fits = match self.dtype {
            // Scores are f32 sums of up to 512 products of up to 6; their error enters the exponent.
            DType::F32 => ours.most <= 1e-5 * largest,
            // Weights are rounded before the second product, which may cost an element half an ulp more.
            _ => ours.most <= 1.5 * plain.most + self.half_ulp(largest),
        };
        assert!(fits, "{what}: {ours:?}, plain formula {plain:?}, largest {largest}");
        if let Some(statistics) = statistics {
            let (heads, batch) = (self.heads.0, self.sequences.len());
            let dims = match self.form {
                Form::Dense => vec![batch, heads, total / batch],
                _ => vec![heads, total],
            };
            assert_eq!((statistics.dims(), statistics.dtype()), (dims.as_slice(), DType::F32), "{what}");
            let statistics = match self.form {
                Form::Dense => statistics.transpose(0, 1)?.contiguous()?,
                _ => statistics,
            };
            for (got, right) in wide(&statistics)?.iter().zip(&right.statistics) {
                // Scores are sums of up to 512 products of up to 6, and matrix units may truncate each sum. gfx90a's
                // matrix units flush f16 subnormals (below 2^-14) to zero, which affects scores of few products.
                let same = got == right || (got - right).abs() <= 1e-4 * (1.0 + right.abs());
                assert!(same, "{what}: statistics {got}, not {right}");
            }
        }
        Ok(Errors { function: function.name, largest, ours, plain })
    }
}

/// Returns the errors; infinite if any value is NaN.
fn off(got: &[f64], right: &[f64]) -> ErrorSize {
    assert_eq!(got.len(), right.len());
    let each =
        || got.iter().zip(right).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f64::INFINITY });
    let squares: f64 = each().map(|x| x * x).sum();
    ErrorSize { most: each().fold(0.0, f64::max), mean_square: squares / got.len().max(1) as f64 }
}
