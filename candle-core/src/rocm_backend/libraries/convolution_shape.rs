//! Sizes of a convolution, shared by the operations, the library and the tuning cache.
use crate::DType;
use std::fmt;

/// Sizes of a convolution along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Axis {
    pub(crate) size: usize,
    pub(crate) taps: usize,
    pub(crate) padding: usize,
    pub(crate) stride: usize,
    pub(crate) dilation: usize,
    /// Size of the output.
    pub(crate) out: usize,
}

impl Axis {
    /// Vertical axis of a one-dimensional convolution.
    pub(crate) const UNIT: Self = Self { size: 1, taps: 1, padding: 0, stride: 1, dilation: 1, out: 1 };
}

/// The tensor that is computed from the two others: `x` (batch, groups * c_in, h, w), `k` (groups * c_out, c_in, k_h, k_w)
/// or `y` (batch, groups * c_out, h_out, w_out). The gradient of each direction is another direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// Computes y from x and k: a convolution.
    Output,
    /// Computes x from y and k: a transposed convolution.
    Input,
    /// Computes k from x and y: the weight gradient.
    Weights,
}

/// A convolution in one direction; `c_in` and `c_out` are the channels of one group.
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
    pub(crate) fn x(&self) -> [usize; 4] {
        [self.batch, self.groups * self.c_in, self.h.size, self.w.size]
    }

    pub(crate) fn k(&self) -> [usize; 4] {
        [self.groups * self.c_out, self.c_in, self.h.taps, self.w.taps]
    }

    pub(crate) fn y(&self) -> [usize; 4] {
        [self.batch, self.groups * self.c_out, self.h.out, self.w.out]
    }

    /// Returns the dims of the computed tensor.
    pub(crate) fn result(&self) -> [usize; 4] {
        match self.direction {
            Direction::Output => self.y(),
            Direction::Input => self.x(),
            Direction::Weights => self.k(),
        }
    }

    /// Returns the number of positions in a plane of y.
    pub(crate) fn places(&self) -> usize {
        self.h.out * self.w.out
    }

    /// Returns the number of input elements of one group that contribute to an element of y.
    pub(crate) fn columns(&self) -> usize {
        self.c_in * self.h.taps * self.w.taps
    }

    /// Returns the same sizes with another direction.
    pub(crate) fn with_direction(self, direction: Direction) -> Self {
        Self { direction, ..self }
    }
}

/// Formats the shape for logs and the tuning cache: all sizes, without spaces.
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
