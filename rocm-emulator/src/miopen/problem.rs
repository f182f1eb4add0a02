//! A convolution problem: three tensors, one of which is computed from the other two.
use super::axis::Axis;
use super::descriptor::{Convolution, DataType, Tensor, packed};
use super::status::{Outcome, bad_parm};

/// The tensor that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The output.
    Forward,
    /// The gradient of the input.
    BackwardData,
    /// The gradient of the weights.
    BackwardWeights,
}

/// Indices of the three tensors in [`Problem`].
pub const INPUT: usize = 0;
pub const WEIGHTS: usize = 1;
pub const OUTPUT: usize = 2;

impl Direction {
    /// Returns the tensors that a function takes, in the order of its arguments; the last is computed.
    pub fn arguments(self) -> [usize; 3] {
        match self {
            Self::Forward => [WEIGHTS, INPUT, OUTPUT],
            Self::BackwardData => [OUTPUT, WEIGHTS, INPUT],
            Self::BackwardWeights => [OUTPUT, INPUT, WEIGHTS],
        }
    }

    /// Returns the names of the three tensors in MIOpen's declarations.
    pub fn names(self) -> [&'static str; 3] {
        match self {
            Self::Forward => ["x", "w", "y"],
            Self::BackwardData => ["dx", "w", "dy"],
            Self::BackwardWeights => ["x", "dw", "dy"],
        }
    }

    /// Returns the tensor that is computed.
    pub fn target(self) -> usize {
        self.arguments()[2]
    }
}

/// Sizes and strides of a tensor of four dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub dims: [usize; 4],
    /// Strides in elements.
    pub strides: [usize; 4],
}

impl Layout {
    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns true if the tensor is packed, with the last dimension innermost. Strides of dimensions of size 1 are ignored.
    pub fn is_packed(&self) -> bool {
        let dense = packed(&self.dims).unwrap_or_default();
        (0..4).all(|index| self.dims[index] == 1 || dense.get(index) == Some(&self.strides[index]))
    }

    /// Returns true if two elements may have the same address.
    fn overlaps(&self) -> bool {
        let mut steps: Vec<_> = (0..4).filter(|i| self.dims[*i] > 1).collect();
        steps.sort_by_key(|index| self.strides[*index]);
        let mut reach = 0;
        steps.iter().any(|index| {
            let inside = self.strides[*index] <= reach;
            reach += self.strides[*index] * (self.dims[*index] - 1);
            inside
        })
    }
}

/// A convolution with matching tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    pub direction: Direction,
    pub kind: DataType,
    pub convolution: Convolution,
    /// Input, weights, output.
    pub layouts: [Layout; 3],
    /// Rows and columns.
    pub axes: [Axis; 2],
}

impl Problem {
    /// Checks that the tensors (input, weights, output) match.
    ///
    /// # Errors
    /// `BadParm`.
    pub fn new(direction: Direction, convolution: Convolution, tensors: [Tensor; 3]) -> Outcome<Self> {
        let names = direction.names();
        let [x, w, y] = &tensors;
        if x.kind != w.kind || x.kind != y.kind {
            return bad_parm(format!(
                "the tensors have different element types {:?}, {:?} and {:?}",
                x.kind, w.kind, y.kind
            ));
        }
        let (dims, axes) = fit(&convolution, x, w)?;
        if y.dims != dims {
            return bad_parm(format!(
                "{} must be {dims:?} for these tensors, not {:?}",
                names[OUTPUT], y.dims
            ));
        }
        let layout = |tensor: &Tensor| Layout { dims: four(&tensor.dims), strides: four(&tensor.strides) };
        let layouts = [layout(x), layout(w), layout(y)];
        if layouts[direction.target()].overlaps() {
            return bad_parm(format!("elements of {} may overlap", names[direction.target()]));
        }
        Ok(Self { direction, kind: x.kind, convolution, layouts, axes })
    }

    /// Returns the number of multiplications.
    pub fn work(&self) -> f64 {
        let [_, channels, rows, columns] = self.layouts[WEIGHTS].dims.map(|dim| dim as f64);
        self.layouts[OUTPUT].dims.iter().map(|dim| *dim as f64).product::<f64>() * channels * rows * columns
    }
}

/// Returns the dimensions of the output and both axes.
///
/// # Errors
/// `BadParm` if the weights do not match the input.
pub fn fit(convolution: &Convolution, input: &Tensor, weights: &Tensor) -> Outcome<(Vec<usize>, [Axis; 2])> {
    if input.dims.len() != 4 || weights.dims.len() != 4 {
        return bad_parm("the tensors of a convolution must have four dimensions");
    }
    let ([batch, channels, ..], [filters, filter_channels, ..]) = (four(&input.dims), four(&weights.dims));
    let groups = convolution.groups;
    if channels % groups != 0 || filters % groups != 0 || filter_channels != channels / groups {
        return bad_parm(format!(
            "weights {:?} for {channels} channels in {groups} groups: expected channels / groups in the second dimension, \
             and a first that groups divide",
            weights.dims
        ));
    }
    let axis = |index: usize| {
        let axis = Axis {
            input: input.dims[2 + index],
            filter: weights.dims[2 + index],
            output: 0,
            padding: convolution.padding[index],
            stride: convolution.stride[index],
            dilation: convolution.dilation[index],
        };
        match axis.fitting() {
            Some(output) => Ok(Axis { output, ..axis }),
            None => bad_parm(format!("weights {:?} exceed the padded input {:?}", weights.dims, input.dims)),
        }
    };
    let axes = [axis(0)?, axis(1)?];
    Ok((vec![batch, filters, axes[0].output, axes[1].output], axes))
}

/// Converts a slice of four numbers to an array.
fn four(values: &[usize]) -> [usize; 4] {
    std::array::from_fn(|index| values[index])
}
