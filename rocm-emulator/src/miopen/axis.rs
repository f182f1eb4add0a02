//! A spatial dimension of a convolution.
use std::ops::Range;

/// Sizes, padding, stride and dilation along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Axis {
    pub input: usize,
    pub filter: usize,
    pub output: usize,
    pub padding: usize,
    pub stride: usize,
    pub dilation: usize,
}

impl Axis {
    /// Returns the size of the output; `None` if the filter is larger than the padded input.
    pub fn fitting(&self) -> Option<usize> {
        let reach = self.dilation.checked_mul(self.filter - 1)?.checked_add(1)?;
        let padded = self.padding.checked_mul(2)?.checked_add(self.input)?;
        Some(padded.checked_sub(reach)? / self.stride + 1)
    }

    /// Returns the input's position under a filter element at an output position, unless it is padding.
    pub fn input_at(&self, output: usize, element: usize) -> Option<usize> {
        let position = (output * self.stride + element * self.dilation).checked_sub(self.padding)?;
        (position < self.input).then_some(position)
    }

    /// Returns the output positions for which a filter element is inside the input, and the input's position for the first
    /// of them. The range is empty if the element always falls on padding.
    pub fn outputs(&self, element: usize) -> (Range<usize>, usize) {
        let ahead = element * self.dilation;
        let end = match (self.input + self.padding).checked_sub(ahead + 1) {
            Some(last) => (last / self.stride + 1).min(self.output),
            None => 0,
        };
        let first = self.padding.saturating_sub(ahead).div_ceil(self.stride).min(end);
        (first..end, (first * self.stride + ahead).saturating_sub(self.padding))
    }

    /// Returns the output positions whose windows may contain a position of the input.
    pub fn outputs_around(&self, input: usize) -> Range<usize> {
        let padded = input + self.padding;
        let reach = self.dilation * (self.filter - 1);
        padded.saturating_sub(reach).div_ceil(self.stride)..(padded / self.stride + 1).min(self.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_enumerations_visit_the_same_positions() {
        for case in 0..5 * 5 * 6 * 4 * 4 {
            let (input, filter) = (1 + case % 5, 1 + case / 5 % 5);
            let (padding, stride, dilation) = (case / 25 % 6, 1 + case / 150 % 4, 1 + case / 600);
            let mut axis = Axis { input, filter, output: 0, padding, stride, dilation };
            let Some(output) = axis.fitting() else {
                assert!(dilation * (filter - 1) >= input + 2 * padding, "{axis:?}");
                continue;
            };
            axis.output = output;
            for element in 0..filter {
                let (range, first) = axis.outputs(element);
                assert!(range.start <= range.end && range.end <= output, "{axis:?} {element}: {range:?}");
                for output in 0..output {
                    let position = (output * stride + element * dilation) as i64 - padding as i64;
                    let inside = (0..input as i64).contains(&position);
                    assert_eq!(axis.input_at(output, element), inside.then_some(position as usize));
                    assert_eq!(range.contains(&output), inside, "{axis:?} {element} {output}");
                    if inside {
                        assert_eq!(first + (output - range.start) * stride, position as usize);
                        assert!(axis.outputs_around(position as usize).contains(&output), "{axis:?}");
                    }
                }
            }
        }
    }
}
