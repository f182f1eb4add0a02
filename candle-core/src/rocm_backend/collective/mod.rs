//! Operations between the ranks of a [`Communicator`], which are GPUs of this machine, by RCCL.
//!
//! A rank is a device. The ranks belong to one process ([`Communicator::for_devices`]) or to one process each
//! ([`Communicator::connect`]). All ranks call the same operations in the same order with the same shapes and dtypes.
//! The operations are enqueued on the device's stream; the host does not wait for them.
//!
//! ```no_run
//! use candle_core::rocm::collective::{group, Communicator, ReduceOp};
//! use candle_core::{DType, Device, Result, Tensor};
//!
//! fn sum_of_two_gpus() -> Result<()> {
//!     let devices = [Device::new_rocm(0)?, Device::new_rocm(1)?];
//!     let ranks = Communicator::for_devices(&devices)?;
//!     // One thread calls the operations of several ranks in a group.
//!     let sums = group(|| {
//!         let sum = |rank: &Communicator| {
//!             rank.all_reduce(&Tensor::ones(4, DType::F32, rank.device())?, ReduceOp::Sum)
//!         };
//!         ranks.iter().map(sum).collect::<Result<Vec<_>>>()
//!     })?;
//!     assert_eq!(sums[1].to_vec1::<f32>()?, [2., 2., 2., 2.]);
//!     Ok(())
//! }
//! ```
//!
//! # Failures
//!
//! Every wait has a deadline ([`Communicator::set_deadline`]). If a rank ends, fails, or does not take part in time, the
//! other ranks return [`RocmError::Collective`](super::RocmError::Collective), which names the rank if it is known. The
//! communicator cannot be used any more, and every wait for its device returns the error until it is dropped. The device
//! itself stays usable.
//!
//! | file | subject |
//! |---|---|
//! | `board` | what each rank of this process has called, for errors |
//! | `communicator` | a rank: joining, failing, monitoring |
//! | `group` | calls that take effect together |
//! | `links` | connections between processes, by which a rank notices that another one has ended |
//! | `operations` | the operations on tensors |
//! | `rendezvous` | passing the unique id to other processes by a file or TCP |
#![allow(non_upper_case_globals, reason = "codes are named as in C")]
mod board;
mod communicator;
mod group;
mod links;
mod operations;
mod rendezvous;

pub use board::ReduceOp;
pub use communicator::{Communicator, Id, DEADLINE_VARIABLE};
pub use group::group;
pub use rendezvous::Rendezvous;
