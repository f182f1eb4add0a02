//! Operations between ranks on tensors: reductions, gathers, broadcasts, and messages.
use super::board::{Call, ReduceOp};
use super::communicator::{Communicator, Handle};
use super::group;
use crate::op::BackpropOp;
use crate::rocm_backend::storage::RocmStorage;
use crate::{DType, Result, Shape, Storage, Tensor};
use rocm_loader::rccl::*;
use std::ffi::{c_int, c_void};

/// Returns the library's number of a dtype; `None` if it is not supported.
fn datatype(dtype: DType) -> Option<ncclDataType_t> {
    Some(match dtype {
        DType::U8 => ncclUint8,
        DType::U32 => ncclUint32,
        DType::I32 => ncclInt32,
        DType::I64 => ncclInt64,
        DType::F16 => ncclFloat16,
        DType::BF16 => ncclBfloat16,
        DType::F32 => ncclFloat32,
        DType::F64 => ncclFloat64,
        _ => return None,
    })
}

fn reduction(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclSum,
        ReduceOp::Max => ncclMax,
    }
}

/// Arguments that all functions of the library take.
struct Arguments {
    send: *const c_void,
    receive: *mut c_void,
    datatype: ncclDataType_t,
    comm: ncclComm_t,
    stream: hipStream_t,
}

impl Communicator {
    /// Returns the reduction of the `x` of all ranks, on each rank. Sums of f16 and bf16 are rounded in between as the
    /// library does; the software GPU computes them in f32, in the order of the ranks.
    ///
    /// # Errors
    /// See [`super`]. Also if the dtype is not one of f16, bf16, f32, f64, u8, u32, i32 and i64, if gradients of `x` are
    /// tracked, or if `x` is on another GPU.
    pub fn all_reduce(&self, x: &Tensor, op: ReduceOp) -> Result<Tensor> {
        let (count, op) = (x.elem_count(), reduction(op));
        // SAFETY: both buffers have `count` elements.
        self.run("all_reduce", x, x.shape().clone(), |a| unsafe {
            ncclAllReduce(a.send, a.receive, count, a.datatype, op, a.comm, a.stream)
        })
    }

    /// Returns the `x` of all ranks, concatenated along the first dimension, on each rank.
    ///
    /// # Errors
    /// See [`Self::all_reduce`].
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let count = x.elem_count();
        let shape = match x.dims().split_first() {
            Some((first, rest)) => [&[first * self.world_size()], rest].concat(),
            None => vec![self.world_size()],
        };
        // SAFETY: the receive buffer has `count` elements for each rank.
        self.run("all_gather", x, shape.into(), |a| unsafe {
            ncclAllGather(a.send, a.receive, count, a.datatype, a.comm, a.stream)
        })
    }

    /// Computes the reduction of the `x` of all ranks, divides it along the first dimension into as many blocks as there
    /// are ranks, and returns the block of this rank.
    ///
    /// # Errors
    /// See [`Self::all_reduce`]. Also if the first dimension is not divisible by the number of ranks.
    pub fn reduce_scatter(&self, x: &Tensor, op: ReduceOp) -> Result<Tensor> {
        const OP: &str = "reduce_scatter";
        let (world_size, op) = (self.world_size(), reduction(op));
        let shape = match x.dims().split_first() {
            Some((first, rest)) if first.is_multiple_of(world_size) => [&[first / world_size], rest].concat(),
            _ => {
                let cause =
                    format!("the first dimension of {:?} is not divisible by {world_size} ranks", x.shape());
                return Err(self.state().error(OP, cause));
            }
        };
        let count = x.elem_count() / world_size;
        // SAFETY: the receive buffer has `count` elements, the send buffer as many for each rank.
        self.run(OP, x, shape.into(), |a| unsafe {
            ncclReduceScatter(a.send, a.receive, count, a.datatype, op, a.comm, a.stream)
        })
    }

    /// Returns the `x` of rank `root`. The other ranks pass a tensor of the same shape and dtype, whose values are not
    /// used.
    ///
    /// # Errors
    /// See [`Self::all_reduce`].
    pub fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        let (count, root) = (x.elem_count(), self.peer("broadcast", root)?);
        // SAFETY: both buffers have `count` elements.
        self.run("broadcast", x, x.shape().clone(), |a| unsafe {
            ncclBroadcast(a.send, a.receive, count, a.datatype, root, a.comm, a.stream)
        })
    }

    /// Sends `x` to another rank, which calls [`Self::receive`]. Ranks that send to each other do so in a
    /// [`group`](super::group()).
    ///
    /// # Errors
    /// See [`Self::all_reduce`].
    pub fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        let (count, to) = (x.elem_count(), self.peer("send", to)?);
        // SAFETY: the send buffer has `count` elements.
        self.run("send", x, 0.into(), |a| unsafe {
            ncclSend(a.send, count, a.datatype, to, a.comm, a.stream)
        })?;
        Ok(())
    }

    /// Receives a tensor that another rank sends.
    ///
    /// # Errors
    /// See [`Self::all_reduce`].
    pub fn receive(&self, shape: impl Into<Shape>, dtype: DType, from: usize) -> Result<Tensor> {
        let (shape, from) = (shape.into(), self.peer("receive", from)?);
        let count = shape.elem_count();
        let nothing = Tensor::zeros(0, dtype, self.device())?;
        // SAFETY: the receive buffer has `count` elements.
        self.run("receive", &nothing, shape, |a| unsafe {
            ncclRecv(a.receive, count, a.datatype, from, a.comm, a.stream)
        })
    }

    fn peer(&self, op: &'static str, rank: usize) -> Result<c_int> {
        let world_size = self.world_size();
        match c_int::try_from(rank) {
            Ok(number) if rank < world_size => Ok(number),
            _ => {
                Err(self.state().error(op, format!("there is no rank {rank}: the ranks are 0..{world_size}")))
            }
        }
    }

    /// Enqueues an operation that reads `x` and writes a new tensor of the given shape.
    fn run(
        &self,
        name: &'static str,
        x: &Tensor,
        shape: Shape,
        call: impl FnOnce(Arguments) -> ncclResult_t,
    ) -> Result<Tensor> {
        let (rank, dtype) = (self.state(), x.dtype());
        let elements = x.elem_count().max(shape.elem_count());
        let made = Call { name, elements, dtype };
        let refuse = |cause: &str| Err(rank.error(made.to_string(), cause.to_string()));
        let Some(datatype) = datatype(dtype) else {
            return Err(crate::rocm_backend::error::unsupported_dtype(name, dtype));
        };
        if x.track_op() {
            return refuse("gradients of operations between ranks are not supported; detach the operand");
        }
        let x = x.contiguous()?;
        let result = {
            let (storage, layout) = x.storage_and_layout();
            let Storage::Rocm(storage) = &*storage else {
                return refuse("the operand is not on a ROCm device; move it to the communicator's device");
            };
            if storage.device.ordinal() != rank.rocm.ordinal() {
                return refuse("the operand is on another GPU; move it to the communicator's device");
            }
            // SAFETY: the operation writes every element. If it fails, later waits return the error.
            let dst = unsafe { RocmStorage::alloc(&rank.rocm, dtype, shape.elem_count(), name)? };
            dst.order_after(storage)?;
            let (send, receive) = (storage.contiguous_ptr(layout, name)?, dst.slice.ptr());
            let stream = &rank.rocm.state().stream;
            stream.bind_and_flush()?;
            let mut handle = rank.handle();
            rank.check_usable(&handle, || made.to_string())?;
            rank.record(&mut handle, made);
            let arguments = Arguments {
                send: send.0.cast_const().cast(),
                receive: receive.0.cast(),
                datatype,
                comm: handle.raw,
                stream: stream.raw(),
            };
            let result = Tensor::from_storage(Storage::Rocm(dst), shape, BackpropOp::none(), false);
            let is_grouped = group::add(self, &[&x, &result]);
            self.enqueued(&mut handle, call(arguments), made, is_grouped)?;
            result
        };
        Ok(result)
    }

    /// Waits until the library has enqueued a call, unless that happens at the end of a group.
    fn enqueued(
        &self,
        handle: &mut Handle,
        result: ncclResult_t,
        call: Call,
        is_grouped: bool,
    ) -> Result<()> {
        match result {
            ncclSuccess => Ok(()),
            ncclInProgress if is_grouped => Ok(()),
            result => {
                let hint = "a thread that holds several ranks calls their operations in a group";
                self.state().settled(handle, result, &call.to_string(), hint)
            }
        }
    }
}
