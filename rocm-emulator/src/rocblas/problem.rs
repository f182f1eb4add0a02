//! A batch of requested matrix products D = alpha * op(A) * op(B) + beta * C, column-major. The arguments are checked
//! during the call, as in rocBLAS, and the memory when the product runs.
use super::element;
use super::types::{DataType, Operation, Status, Types};
use crate::exec::AddressSpace;
use crate::runtime::{ErrorCode, HipError, Result};

/// Location of the matrices of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Matrix i is `i * stride` elements after `base`.
    Strided { base: usize, stride: i64 },
    /// The addresses are in an array in device memory.
    Pointers { array: usize },
}

impl Place {
    fn is_null(self) -> bool {
        matches!(self, Self::Strided { base: 0, .. } | Self::Pointers { array: 0 })
    }
}

/// An operand of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    pub place: Place,
    /// Leading dimension: elements from one column to the next.
    pub ld: i32,
}

/// The factor alpha or beta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A value that was read during the call. A double represents every scalar type exactly.
    Host(f64),
    /// An address in device memory, read when the work runs.
    Device(usize),
    /// The pointer was null.
    Missing,
}

/// A vector that is added to every column of the result before it is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bias {
    pub address: usize,
    pub kind: DataType,
}

/// The arguments of any gemm function.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Name of the C function, for error messages.
    pub function: &'static str,
    pub types: Types,
    pub op_a: Operation,
    pub op_b: Operation,
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub alpha: Scalar,
    pub beta: Scalar,
    pub a: Operand,
    pub b: Operand,
    pub c: Operand,
    pub d: Operand,
    pub batch: i32,
    /// The bias, used by hipBLASLt only.
    pub bias: Option<Bias>,
    /// True if GELU, in its tanh approximation, is applied last, used by hipBLASLt only.
    pub gelu: bool,
}

/// The matrix addresses of one product of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrices {
    pub a: usize,
    pub b: usize,
    pub c: usize,
    pub d: usize,
}

impl Problem {
    /// Checks the arguments in rocBLAS' order. `Continue` means that there is work to do.
    pub fn check(&self) -> Status {
        let (rows_a, _) = self.stored_a();
        let (rows_b, _) = self.stored_b();
        let sizes = [self.m, self.n, self.k, self.batch];
        if sizes.iter().any(|size| *size < 0)
            || (self.a.ld as i64) < rows_a as i64
            || (self.b.ld as i64) < rows_b as i64
            || self.c.ld < self.m
            || self.d.ld < self.m
        {
            return Status::InvalidSize;
        }
        if self.m == 0 || self.n == 0 || self.batch == 0 {
            return Status::Success;
        }
        if self.beta == Scalar::Missing || (self.k > 0 && self.alpha == Scalar::Missing) {
            return Status::InvalidPointer;
        }
        let in_place = self.c.place == self.d.place;
        if in_place && self.c.ld != self.d.ld {
            return Status::InvalidValue;
        }
        let without_product = self.k == 0 || self.alpha == Scalar::Host(0.0);
        if without_product && in_place && self.beta == Scalar::Host(1.0) {
            return Status::Success;
        }
        let inputs_missing = !without_product && (self.a.place.is_null() || self.b.place.is_null());
        if inputs_missing || self.c.place.is_null() || self.d.place.is_null() {
            return Status::InvalidPointer;
        }
        Status::Continue
    }

    /// Returns the rows and columns of A as stored.
    pub fn stored_a(&self) -> (usize, usize) {
        stored(self.op_a, self.m, self.k)
    }

    /// Returns the rows and columns of B as stored.
    pub fn stored_b(&self) -> (usize, usize) {
        stored(self.op_b, self.k, self.n)
    }

    /// Returns the addresses of every product, and checks that each matrix is inside live memory of the device. A, B and C
    /// are not checked if they are not read.
    pub fn matrices(&self, memory: &AddressSpace, reads: Reads) -> Result<Vec<Matrices>> {
        let out = (self.m as usize, self.n as usize);
        let (input, output) = (self.types.input.bytes(), self.types.output.bytes());
        (0..self.batch as usize)
            .map(|index| {
                let locate = |name, operand, shape, bytes, wanted| {
                    self.locate(memory, name, operand, shape, bytes, index, wanted)
                };
                Ok(Matrices {
                    a: locate("A", self.a, self.stored_a(), input, Access::read_if(reads.inputs))?,
                    b: locate("B", self.b, self.stored_b(), input, Access::read_if(reads.inputs))?,
                    c: locate("C", self.c, out, output, Access::read_if(reads.c))?,
                    d: locate("D", self.d, out, output, Access::Write)?,
                })
            })
            .collect()
    }

    #[allow(clippy::too_many_arguments)] // one per part of the message
    fn locate(
        &self,
        memory: &AddressSpace,
        name: &str,
        operand: Operand,
        (rows, columns): (usize, usize),
        element: usize,
        index: usize,
        access: Access,
    ) -> Result<usize> {
        if access == Access::None {
            return Ok(0);
        }
        let address = match operand.place {
            Place::Strided { base, stride } => {
                let offset = (index as i64).wrapping_mul(stride).wrapping_mul(element as i64);
                base.wrapping_add_signed(offset as isize)
            }
            Place::Pointers { array } => {
                let slot = array.wrapping_add(index * size_of::<usize>());
                self.require(
                    memory,
                    &format!("the address of matrix {name}"),
                    slot,
                    size_of::<usize>(),
                    8,
                    index,
                    false,
                )?;
                // SAFETY: the slot is inside live memory of the device and aligned.
                unsafe { std::ptr::with_exposed_provenance::<usize>(slot).read() }
            }
        };
        if rows > 0 && columns > 0 {
            let bytes = ((columns - 1) * operand.ld as usize + rows).saturating_mul(element);
            let what = format!("matrix {name} ({rows} x {columns}, leading dimension {})", operand.ld);
            self.require(memory, &what, address, bytes, element, index, access == Access::Write)?;
            for column in 0..columns {
                let place = (address + column * operand.ld as usize * element) as u64;
                let bytes = (rows * element) as u64;
                if access == Access::Write {
                    memory.note_written(place, bytes);
                } else if let Some(missing) = memory.missing(place, bytes) {
                    return Err(self.uninitialised(&what, index, column, missing.first as usize / element));
                }
            }
        }
        Ok(address)
    }

    fn uninitialised(&self, what: &str, index: usize, column: usize, row: usize) -> HipError {
        let function = self.function;
        let text = format!(
            "uninitialised memory: {function} reads {what} of product {index}; nothing has written row {row} of \
             column {column}"
        );
        HipError::new(ErrorCode::LaunchFailure, text)
    }

    /// Checks that a range is live and aligned, and writable if `write` is true.
    #[allow(clippy::too_many_arguments)] // one per part of the message
    fn require(
        &self,
        memory: &AddressSpace,
        what: &str,
        address: usize,
        bytes: usize,
        alignment: usize,
        index: usize,
        write: bool,
    ) -> Result<()> {
        let function = self.function;
        let what = || format!("{function}: {what} of product {index}");
        require(memory, what, address, bytes, alignment, write)
    }

    /// Reads the elements of the bias.
    pub fn bias(&self, memory: &AddressSpace) -> Result<Option<Vec<f64>>> {
        let Some(Bias { address, kind }) = self.bias else { return Ok(None) };
        let (rows, bytes) = (self.m as usize, kind.bytes());
        let vector = Operand { place: Place::Strided { base: address, stride: 0 }, ld: self.m };
        self.locate(memory, "bias", vector, (rows, 1), bytes, 0, Access::Read)?;
        let element = |row| {
            let place = std::ptr::with_exposed_provenance(address + row * bytes);
            // SAFETY: the vector is inside live memory of the device and aligned.
            unsafe { element::read_scalar(kind, place) }
        };
        Ok(Some((0..rows).map(element).collect()))
    }

    /// Overwrites the product's workspace, so that a program that keeps other data there fails.
    pub fn overwrite_workspace(&self, memory: &AddressSpace, address: usize, bytes: usize) -> Result<()> {
        self.require(memory, "the workspace", address, bytes, 1, 0, true)?;
        memory.note_written(address as u64, bytes as u64);
        let place = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the bytes are inside live, writable memory of the device. They are NaN in every type.
        unsafe { place.write_bytes(0xff, bytes) };
        Ok(())
    }

    /// Returns the value of a scalar, which is read now if it is in device memory.
    pub fn scalar(&self, memory: &AddressSpace, scalar: Scalar) -> Result<f64> {
        match scalar {
            Scalar::Host(value) => Ok(value),
            Scalar::Missing => Ok(0.0),
            Scalar::Device(address) => {
                let bytes = self.types.scalar.bytes();
                self.require(memory, "a scalar", address, bytes, bytes, 0, false)?;
                // SAFETY: the address is inside live memory of the device and aligned.
                Ok(unsafe {
                    element::read_scalar(self.types.scalar, std::ptr::with_exposed_provenance(address))
                })
            }
        }
    }
}

/// Checks that a range is live and aligned, and writable if `write` is true. `what` names it in the error.
///
/// # Errors
/// `IllegalAddress`.
pub fn require(
    memory: &AddressSpace,
    what: impl FnOnce() -> String,
    address: usize,
    bytes: usize,
    alignment: usize,
    write: bool,
) -> Result<()> {
    let reject = |why: String| {
        let text = format!("{}, {bytes} bytes at 0x{address:x}, {why}", what());
        Err(HipError::new(ErrorCode::IllegalAddress, text))
    };
    if !address.is_multiple_of(alignment) {
        return reject(format!("is not aligned to {alignment} bytes"));
    }
    match memory.find(address as u64) {
        Some(range) if !range.holds(address as u64, bytes as u64) => {
            let over = (address as u64).saturating_add(bytes as u64) - range.end();
            reject(format!("reaches {over} bytes past the end of its allocation of {} bytes", range.len))
        }
        Some(range) if write && !range.writable => reject("is not writable".to_owned()),
        Some(_) => Ok(()),
        None => {
            let (wrong, there) = memory.outside(address as u64, bytes as u64);
            reject(format!("is not live memory of the device ({wrong}: {there})"))
        }
    }
}

/// The matrices that a product reads: A and B unless alpha or k is 0, C unless beta is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    pub inputs: bool,
    pub c: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    None,
    Read,
    Write,
}

impl Access {
    fn read_if(read: bool) -> Self {
        if read { Self::Read } else { Self::None }
    }
}

/// Returns the stored rows and columns of a matrix that is `rows` x `columns` after its operation.
fn stored(operation: Operation, rows: i32, columns: i32) -> (usize, usize) {
    let (rows, columns) = (rows.max(0) as usize, columns.max(0) as usize);
    match operation {
        Operation::None => (rows, columns),
        Operation::Transpose => (columns, rows),
    }
}
