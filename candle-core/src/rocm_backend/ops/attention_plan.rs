//! Sizes of attention's operands, and the distribution of its work over workgroups.
use crate::DType;
use hip_kernels::contract::{
    ATTENTION_COLUMNS, ATTENTION_COUNTERS, ATTENTION_DECODE_KEYS, ATTENTION_DECODE_ROWS,
    ATTENTION_DECODE_WIDTH, ATTENTION_EXCHANGED_WORDS, ATTENTION_ROWS, BLOCK,
};

/// Minimum number of keys per part of attention_rows; for fewer, writing and combining the partial sums costs more than it
/// saves.
const MIN_KEYS_PER_PART: usize = 256;
/// Rows of the workgroups of attention_decode that a multiprocessor runs at once, limited by registers.
const DECODE_ROWS_PER_MULTIPROCESSOR: usize = 8;

/// Sizes of the operands of a launch.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batches: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    /// Maximum number of queries of a sequence.
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) width: usize,
    pub(super) value_width: usize,
    /// Total number of queries of all sequences.
    pub(super) total_queries: usize,
    pub(super) total_keys: usize,
    /// Number of rows of a page; 0 if keys are not paged.
    pub(super) page: usize,
    pub(super) pages: usize,
}

impl Sizes {
    /// Returns the number of rows that share a key head.
    pub(super) fn rows(&self) -> usize {
        self.heads / self.key_heads * self.queries
    }

    /// Returns the sizes in the order of the kernel argument.
    pub(super) fn words(&self) -> [usize; 7] {
        let Self { batches, heads, key_heads, queries, keys, width, value_width, .. } = *self;
        [heads, key_heads, batches, queries, keys, width, value_width]
    }

    /// Returns the strides of batches and heads in the statistics.
    pub(super) fn statistics_strides(&self) -> [usize; 2] {
        [self.heads * self.total_queries, self.total_queries]
    }
}

/// Distribution of the work over workgroups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows per workgroup: 4 or 8 for attention_decode, otherwise those of attention_rows.
    pub(super) rows: usize,
    /// Maximum number of keys of a group of lanes per iteration of attention_decode. Kernels with few registers load half as
    /// many.
    pub(super) keys: usize,
    /// Workgroups of the launch.
    pub(super) grid: (usize, usize, usize),
}

impl Plan {
    /// Returns the plan of a launch that appends rows to few keys: the smallest kind of workgroups of which there are at most
    /// `multiprocessors`. Returns `None` if there are more of each kind.
    pub(super) fn of_few_keys(sizes: &Sizes, dtype: DType, multiprocessors: usize) -> Option<Self> {
        let groups = BLOCK / lanes(sizes.width);
        let kinds: &[(usize, usize)] =
            if dtype == DType::F32 { &[(4, 4)] } else { &[(4, 2), (8, 2), (4, 4)] };
        let plans = kinds.iter().map(|&(rows, keys)| {
            let blocks = sizes.rows().div_ceil(rows) * sizes.key_heads * sizes.batches;
            let parts = sizes.keys.next_power_of_two().div_ceil(groups * keys);
            Self { rows, keys, grid: (blocks, 1, parts) }
        });
        let is_possible = |plan: &Self| {
            let (blocks, _, parts) = plan.grid;
            blocks * parts <= multiprocessors && parts <= most_parts(blocks, plan.rows, sizes.value_width)
        };
        plans.into_iter().find(is_possible)
    }

    /// Chooses the kernel and its grid. Depends on the number of keys only through the next power of two, so that launches
    /// rarely change while sequences grow. `wide_decode` is true if attention_decode exists for 8 rows.
    pub(super) fn of(sizes: &Sizes, columns: usize, wide_decode: bool, multiprocessors: usize) -> Self {
        let rows = sizes.rows();
        let keys = sizes.keys.next_power_of_two();
        let width = sizes.width.max(sizes.value_width);
        let blocks = |rows_each: usize| rows.div_ceil(rows_each) * sizes.key_heads * sizes.batches;
        if rows <= ATTENTION_DECODE_ROWS && width <= ATTENTION_DECODE_WIDTH {
            let rows_each = if rows <= 4 || !wide_decode { 4 } else { 8 };
            let blocks = blocks(rows_each);
            let groups = BLOCK / lanes(width);
            let tiles = keys.div_ceil(groups * ATTENTION_DECODE_KEYS);
            let most = tiles.clamp(1, most_parts(blocks, rows_each, sizes.value_width));
            let resident = DECODE_ROWS_PER_MULTIPROCESSOR / rows_each * multiprocessors;
            let parts = decode_parts(blocks, most, resident);
            return Self { rows: rows_each, keys: ATTENTION_DECODE_KEYS, grid: (blocks, 1, parts) };
        }
        let pieces = sizes.value_width.div_ceil(columns);
        let blocks = blocks(ATTENTION_ROWS);
        // With few workgroups and many keys, splitting the keys uses more of the GPU.
        let parts = match keys > 4 * MIN_KEYS_PER_PART {
            true => (multiprocessors / (blocks * pieces).max(1)).clamp(1, keys / MIN_KEYS_PER_PART),
            false => 1,
        };
        Self { rows: ATTENTION_ROWS, keys: ATTENTION_DECODE_KEYS, grid: (blocks, pieces, parts) }
    }
}

/// Returns the number of lanes of attention_decode that share a key.
fn lanes(width: usize) -> usize {
    (width.next_power_of_two() / 8).clamp(8, 32)
}

/// Returns the maximum number of parts of attention_decode for `blocks` groups of `rows` rows of `width` columns.
fn most_parts(blocks: usize, rows: usize, width: usize) -> usize {
    match blocks <= ATTENTION_COUNTERS {
        // A single part exchanges nothing.
        true => (ATTENTION_EXCHANGED_WORDS / (blocks * rows * width).max(1)).max(1),
        false => 1,
    }
}

/// Returns the number of parts, a power of two up to `most`, for `blocks` groups of rows if `resident` workgroups run at once.
/// The time is about that of the rounds of workgroups, each of which takes the parts' share of the keys.
fn decode_parts(blocks: usize, most: usize, resident: usize) -> usize {
    let time = |parts: usize| (blocks * parts).div_ceil(resident) as f64 / parts as f64;
    let mut chosen = 1;
    let mut parts = 2;
    while parts <= most {
        // Combining the parts takes time, too.
        if time(parts) < 0.9 * time(chosen) {
            chosen = parts;
        }
        parts *= 2;
    }
    chosen
}

/// Returns the number of value columns per workgroup for heads of `width`. Must match `attention.cu`: registers hold the
/// accumulators of 256 columns if matrix units multiply 16-bit values.
pub(super) fn columns(width: usize, dtype: DType, matrix_units: bool) -> usize {
    let whole = if matrix_units && dtype.size_in_bytes() == 2 { 256 } else { ATTENTION_COLUMNS };
    if width > whole {
        ATTENTION_COLUMNS
    } else {
        width
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(batches: usize, group: usize, keys: usize, width: usize) -> Sizes {
        Sizes {
            batches,
            heads: 8 * group,
            key_heads: 8,
            queries: 1,
            keys,
            width,
            value_width: width,
            total_queries: 1,
            total_keys: keys,
            page: 16,
            pages: 1,
        }
    }

    fn grid(batches: usize, group: usize, keys: usize, width: usize) -> (usize, usize, usize) {
        Plan::of(&sizes(batches, group, keys, width), width, true, 132).grid
    }

    #[test]
    fn keys_are_split_until_the_gpu_is_full() {
        assert_eq!(grid(1, 4, 30, 128), (8, 1, 1));
        assert_eq!(grid(1, 4, 256, 128), (8, 1, 4));
        assert_eq!(grid(1, 4, 4096, 128), (8, 1, 32));
        assert_eq!(grid(16, 4, 4096, 128), (128, 1, 2));
        assert_eq!(grid(64, 4, 4096, 128), (512, 1, 1));
        assert_eq!(grid(1, 8, 4096, 128), (8, 1, 16));
        // 16 rows are two tiles of eight.
        assert_eq!(grid(1, 16, 64, 64), (16, 1, 1));
    }

    #[test]
    fn workgroups_that_append_are_the_smallest_for_which_there_is_a_multiprocessor() {
        let plan = |sizes: &Sizes, dtype| {
            Plan::of_few_keys(sizes, dtype, 132).map(|plan| (plan.rows, plan.keys, plan.grid.0, plan.grid.2))
        };
        assert_eq!(plan(&sizes(1, 4, 30, 64), DType::F16), Some((4, 2, 8, 1)));
        assert_eq!(plan(&sizes(1, 4, 130, 64), DType::BF16), Some((4, 2, 8, 4)));
        assert_eq!(plan(&sizes(1, 8, 576, 64), DType::F16), Some((8, 2, 8, 16)));
        assert_eq!(plan(&sizes(1, 4, 576, 128), DType::F16), Some((4, 4, 8, 16)));
        assert_eq!(plan(&sizes(1, 4, 1030, 128), DType::F16), None);
        assert_eq!(plan(&sizes(1, 4, 130, 64), DType::F32), Some((4, 4, 8, 2)));
        assert_eq!(plan(&sizes(17, 4, 1, 64), DType::F16), None);
        // The software GPU has 48 multiprocessors.
        let sizes = Sizes { heads: 8, key_heads: 1, ..sizes(1, 8, 1300, 64) };
        let plan = Plan::of_few_keys(&sizes, DType::F16, 48).unwrap();
        assert_eq!((plan.rows, plan.keys, plan.grid), (8, 2, (1, 1, 32)));
    }

    /// As in decode.cu: a word for each column of each row of a part, if there are several.
    #[test]
    fn parts_fit_into_the_memory_of_the_kernels() {
        let mut is_limited = false;
        for (batches, group, width) in [1, 3, 17, 64, 500]
            .into_iter()
            .flat_map(|batches| [1, 4, 8, 16].map(|group| (batches, group)))
            .flat_map(|(batches, group)| [8, 64, 128, 256].map(|width| (batches, group, width)))
        {
            for (keys, multiprocessors) in [1, 600, 4096, 100_000]
                .into_iter()
                .flat_map(|keys| [48, 132, 304, 2000].map(|multiprocessors| (keys, multiprocessors)))
            {
                let sizes = sizes(batches, group, keys, width);
                let few =
                    [DType::F16, DType::F32].map(|dtype| Plan::of_few_keys(&sizes, dtype, multiprocessors));
                let many = [true, false].map(|wide| Plan::of(&sizes, width, wide, multiprocessors));
                for plan in few.into_iter().flatten().chain(many) {
                    let (blocks, _, parts) = plan.grid;
                    let words = blocks * parts * plan.rows * width;
                    assert!(parts == 1 || words <= 524_288, "{plan:?}, heads of {width}");
                    assert!(parts == 1 || blocks <= 4096, "{plan:?}");
                    is_limited |= parts > 1 && 2 * words > 524_288;
                }
            }
        }
        assert!(is_limited, "no plan comes near the limit");
        // A single part needs no memory.
        let plan = Plan::of_few_keys(&sizes(38, 8, 1, 256), DType::F16, 304).unwrap();
        assert_eq!((plan.rows, plan.keys, plan.grid), (8, 2, (304, 1, 1)));
    }

    #[test]
    fn launches_change_only_with_the_power_of_two_of_the_keys() {
        for keys in [1, 33, 100, 513, 4000] {
            assert_eq!(grid(2, 4, keys, 64), grid(2, 4, keys.next_power_of_two(), 64), "{keys}");
        }
    }
}
