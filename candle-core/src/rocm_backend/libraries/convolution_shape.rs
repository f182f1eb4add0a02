//! The sizes of a convolution, as operations, the library and the file of choices share them.
use crate::DType;
use std::fmt;

/// The sizes along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axis {
    pub(crate) size: usize,
    pub(crate) taps: usize,
    pub(crate) padding: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Places of the output.
    pub(crate) out: usize,
}

impl Axis {
    /// The vertical axis of a convolution of one dimension.
    pub(crate) const FLAT: Self = Self { size: 1, taps: 1, padding: 0, stride: 1, dilation: 1, out: 1 };
}

/// Operand that is computed: of `x` (batch, groups * c_in, h, w), `k` (groups * c_out, c_in, k_h, k_w) and
/// `y` (batch, groups * c_out, h_out, w_out). Each gradient of one is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// y of x and k: a convolution.
    Output,
    /// x of y and k: a transposed convolution.
    Input,
    /// k of x and y.
    Weights,
}

/// A convolution in one direction; channels are those of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvShape {
    pub(crate) direction: Direction,
    pub(crate) dtype: DType,
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    pub(crate) c_in: usize,
    pub(crate) c_out: usize,
    pub(crate) h: Axis,
    pub(crate) w: Axis,
}

impl ConvShape {
    /// Dims of x.
    pub(crate) fn x(&self) -> [usize; 4] {
        [self.batch, self.groups * self.c_in, self.h.size, self.w.size]
    }

    /// Dims of the weights.
    pub(crate) fn k(&self) -> [usize; 4] {
        [self.groups * self.c_out, self.c_in, self.h.taps, self.w.taps]
    }

    /// Dims of y.
    pub(crate) fn y(&self) -> [usize; 4] {
        [self.batch, self.groups * self.c_out, self.h.out, self.w.out]
    }

    /// Dims of what is computed.
    pub(crate) fn result(&self) -> [usize; 4] {
        match self.direction {
            Direction::Output => self.y(),
            Direction::Input => self.x(),
            Direction::Weights => self.k(),
        }
    }

    /// Places of a plane of y.
    pub(crate) fn places(&self) -> usize {
        self.h.out * self.w.out
    }

    /// Number of elements that a place of y sees in one group.
    pub(crate) fn columns(&self) -> usize {
        self.c_in * self.h.taps * self.w.taps
    }

    /// Returns these sizes in another direction.
    pub(crate) fn towards(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }
}

/// Formats the shape for logs and the file of choices: no spaces, every size in it.
impl fmt::Display for ConvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.direction {
            Direction::Output => "output",
            Direction::Input => "input",
            Direction::Weights => "weights",
        };
        let Self { batch, groups, c_in, c_out, h, w, .. } = self;
        write!(f, "{direction}-{}-b{batch}-g{groups}-c{c_in}-o{c_out}", self.dtype.as_str())?;
        for (name, axis) in [("h", h), ("w", w)] {
            let Axis { size, taps, padding, stride, dilation, out } = axis;
            write!(f, "-{name}{size}k{taps}p{padding}s{stride}d{dilation}to{out}")?;
        }
        Ok(())
    }
}
