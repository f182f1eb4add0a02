//! Tensors in device memory: checks, and conversion to and from dense vectors of f64.
use super::problem::Layout;
use crate::exec::AddressSpace;
use crate::rocblas::{Element, Rounded, require};
use crate::runtime::{ErrorCode, HipError, Result};

/// A tensor at an address.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Name of the C function, for error messages.
    pub function: &'static str,
    /// Name of the tensor in the function's declaration.
    pub name: &'static str,
    pub layout: Layout,
    pub address: usize,
}

impl Operand {
    /// Checks that the memory from the first to the last element is live.
    ///
    /// # Errors
    /// `IllegalAddress`.
    pub fn check<T>(&self, memory: &AddressSpace, write: bool) -> Result<()> {
        let Layout { dims, strides } = self.layout;
        let last: usize = (0..4).map(|index| (dims[index] - 1) * strides[index]).sum();
        let what = || format!("{}: tensor {} ({dims:?}, strides {strides:?})", self.function, self.name);
        require(memory, what, self.address, (last + 1) * size_of::<T>(), align_of::<T>(), write)
    }

    /// Checks that every element was written, if written bytes are tracked.
    ///
    /// # Errors
    /// `LaunchFailure`.
    pub fn check_written<T>(&self, memory: &AddressSpace) -> Result<()> {
        self.runs().try_for_each(|(place, elements)| {
            let missing = memory.missing(self.place::<T>(place), (elements * size_of::<T>()) as u64);
            missing.map_or(Ok(()), |missing| {
                let element = place + missing.first as usize / size_of::<T>();
                let text = format!(
                    "uninitialised memory: {} reads tensor {}; nothing has written element {element} in memory",
                    self.function, self.name
                );
                Err(HipError::new(ErrorCode::LaunchFailure, text))
            })
        })
    }

    /// Reads the elements in the order of their indices.
    ///
    /// # Safety
    /// [`Operand::check`] succeeded for this type, and the memory is still mapped.
    pub unsafe fn read<T: Element<f64>>(&self) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.layout.elements());
        let source = std::ptr::with_exposed_provenance::<T>(self.address);
        // SAFETY: the caller guarantees every element.
        self.each(|place| values.push(unsafe { source.add(place).read() }.widen()));
        values
    }

    /// Writes the elements in the order of their indices.
    ///
    /// # Safety
    /// [`Operand::check`] succeeded for writing this type, and the memory is still mapped.
    pub unsafe fn write<T: Rounded<f64>>(&self, memory: &AddressSpace, values: &[f64]) {
        let target = std::ptr::with_exposed_provenance_mut::<T>(self.address);
        let mut values = values.iter();
        self.each(|place| {
            if let Some(value) = values.next() {
                // SAFETY: the caller guarantees every element.
                unsafe { target.add(place).write(T::narrow(*value)) };
            }
        });
        for (place, elements) in self.runs() {
            memory.note_written(self.place::<T>(place), (elements * size_of::<T>()) as u64);
        }
    }

    fn place<T>(&self, element: usize) -> u64 {
        (self.address + element * size_of::<T>()) as u64
    }

    /// Calls `visit` with the offset of every element, in the order of the indices.
    fn each(&self, mut visit: impl FnMut(usize)) {
        let [.., columns] = self.layout.dims;
        let [.., step] = self.layout.strides;
        self.rows().for_each(|row| (0..columns).for_each(|column| visit(row + column * step)));
    }

    /// Returns the offset of the first element of every row.
    fn rows(&self) -> impl Iterator<Item = usize> {
        let Layout { dims: [images, channels, rows, _], strides: [image, channel, row, _] } = self.layout;
        (0..images).flat_map(move |i| {
            (0..channels).flat_map(move |c| (0..rows).map(move |r| i * image + c * channel + r * row))
        })
    }

    /// Returns the offsets and lengths of the contiguous pieces of the tensor.
    fn runs(&self) -> Box<dyn Iterator<Item = (usize, usize)>> {
        let Layout { dims: [.., columns], strides: [.., step] } = self.layout;
        if self.layout.is_packed() {
            Box::new(std::iter::once((0, self.layout.elements())))
        } else if columns == 1 || step == 1 {
            Box::new(self.rows().map(move |row| (row, columns)).collect::<Vec<_>>().into_iter())
        } else {
            let mut single = Vec::with_capacity(self.layout.elements());
            self.each(|place| single.push((place, 1)));
            Box::new(single.into_iter())
        }
    }
}
