//! The C functions with the prototypes of NCCL 2.14 and later.
use super::call::Call;
use super::communicator::{self, Communicator};
use super::segment;
use super::types::{Config, DataType, Kind, Op, Result, Status, StatusError, UniqueId, reject, status_name};
use super::work::Work;
use crate::c_functions::{c_functions, not_null};
use crate::rocblas::stream_on;
use crate::runtime::{self, Command, Stream, runtime};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::Arc;

/// Version of the interface: major * 10,000 + minor * 100 + patch.
const VERSION: i32 = 22100;

/// Calls of a group that has begun, by communicator and stream.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<(Arc<Communicator>, Arc<Stream>, Vec<Call>)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Runs a function's body and converts a panic to `InternalError`.
pub(super) fn answer(function: &str, body: impl FnOnce() -> Result<()>) -> u32 {
    let outcome = runtime::catch_panic(|| {
        let internal = |detail| StatusError { status: Status::InternalError, reason: detail };
        let called = runtime::called(function).map_err(|error| internal(error.detail));
        // Aborting needs no device, so that the work of a lost device can end, too.
        if function != "ncclCommAbort" {
            called?;
        }
        body()
    });
    match outcome.unwrap_or_else(|panic| reject(Status::InternalError, panic)) {
        Ok(()) => Status::Success as u32,
        Err(StatusError { status, reason }) => {
            runtime::note_detail(format!("{function}: {reason}"));
            status as u32
        }
    }
}

c_functions! {
    /// Returns the version as a number.
    fn ncclGetVersion(version: *mut c_int) -> version {
        VERSION
    }

    /// Creates the identifier that the ranks of a communicator share.
    fn ncclGetUniqueId(uniqueId: *mut UniqueId) -> uniqueId {
        segment::unique_id()?
    }

    /// Creates a rank on the current device. Must be non-blocking: `ncclCommGetAsyncError` returns `ncclInProgress` until
    /// all ranks have joined.
    fn ncclCommInitRankConfig(
        comm: *mut *mut c_void,
        nranks: c_int,
        commId: UniqueId,
        rank: c_int,
        config: *mut Config,
    ) {
        not_null(comm)?;
        // SAFETY: the caller guarantees null or valid settings.
        let config = unsafe { config.as_ref() }.copied();
        let created = communicator::create(&commId, rank, nranks, config)?;
        // SAFETY: checked above, and the caller guarantees it.
        unsafe { comm.write_unaligned(created) };
        match communicator::get(created)?.status() {
            Status::InProgress => reject(Status::InProgress, "other ranks have not joined"),
            _ => Ok(()),
        }
    }

    /// Returns the state of a communicator.
    fn ncclCommGetAsyncError(comm: *mut c_void, asyncError: *mut u32) -> asyncError {
        let found = communicator::get(comm)?;
        let status = found.status();
        if let Some((_, text)) = found.failure() {
            runtime::note_detail(text.to_string_lossy().into_owned());
        }
        status as u32
    }

    /// Ends a communicator and its operations, without their results.
    fn ncclCommAbort(comm: *mut c_void) {
        communicator::remove(comm, true)
    }

    /// Ends the use of a communicator, whose operations have finished.
    fn ncclCommFinalize(comm: *mut c_void) {
        communicator::get(comm).map(drop)
    }

    /// Destroys a communicator, whose operations have finished.
    fn ncclCommDestroy(comm: *mut c_void) {
        communicator::remove(comm, false)
    }

    /// Begins a group. Its calls take effect together at its end.
    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }

    /// Ends a group.
    fn ncclGroupEnd() {
        let ended = GROUP.with_borrow_mut(|group| {
            let depth = group.depth.checked_sub(1)?;
            group.depth = depth;
            Some(if depth == 0 { std::mem::take(&mut group.calls) } else { Vec::new() })
        });
        let Some(calls) = ended else { return reject(Status::InvalidUsage, "no group has begun") };
        calls.into_iter().try_for_each(|(communicator, stream, calls)| enqueue(communicator, &stream, calls))
    }
}

/// Returns the text of a result.
pub unsafe extern "C" fn ncclGetErrorString(result: u32) -> *const c_char {
    status_name(result).as_ptr()
}

/// Returns the text of a communicator's failure, or of the ranks that it waits for; may be empty. It lives until the
/// thread's next call.
pub unsafe extern "C" fn ncclGetLastError(comm: *mut c_void) -> *const c_char {
    thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }
    let text = communicator::get(comm).map(|found| found.explanation()).unwrap_or_default();
    LAST.with_borrow_mut(|last| {
        *last = text;
        last.as_ptr()
    })
}

fn enqueue(communicator: Arc<Communicator>, stream: &Stream, calls: Vec<Call>) -> Result<()> {
    let cuda =
        |error: runtime::HipError| StatusError { status: Status::UnhandledCudaError, reason: error.detail };
    let device = runtime().and_then(|runtime| runtime.device(stream.device)).map_err(cuda)?;
    device.submit(stream, Command::Resumable(Box::new(Work::new(communicator, calls)))).map_err(cuda)
}

/// The unchecked arguments of an operation.
struct Request {
    kind: Kind,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    datatype: u32,
    op: u32,
    peer: c_int,
    communicator: *mut c_void,
    stream: *mut c_void,
}

impl Request {
    /// Checks the request, and enqueues it or adds it to the thread's group.
    fn submit(self) -> Result<()> {
        let communicator = communicator::get(self.communicator)?;
        match communicator.status() {
            Status::Success => {}
            Status::InProgress => {
                return reject(Status::InvalidUsage, "other ranks have not joined the communicator yet");
            }
            status => {
                let text = communicator.failure().map(|(_, text)| text.to_string_lossy().into_owned());
                return reject(status, text.unwrap_or_default());
            }
        }
        let Some(datatype) = DataType::new(self.datatype.into()) else {
            return reject(Status::InvalidArgument, format!("datatype {} is not supported", self.datatype));
        };
        let Some(op) = Op::new(self.op.into()) else {
            return reject(Status::InvalidArgument, format!("reduction {} is not supported", self.op));
        };
        let peer = usize::try_from(self.peer).ok().filter(|peer| *peer < communicator.ranks);
        let Some(peer) = peer else {
            let (ranks, peer) = (communicator.ranks, self.peer);
            return reject(
                Status::InvalidArgument,
                format!("there is no rank {peer}: the ranks are 0..{ranks}"),
            );
        };
        let bytes = self.count.checked_mul(datatype.size());
        let Some(bytes) = bytes.filter(|bytes| bytes.checked_mul(communicator.ranks).is_some()) else {
            return reject(Status::InvalidArgument, format!("{} elements overflow", self.count));
        };
        let Some(stream) = stream_on(communicator.device, self.stream.addr()) else {
            let text = format!("the stream does not belong to device {}", communicator.device);
            return reject(Status::InvalidArgument, text);
        };
        let (send, receive) = (self.send.expose_provenance(), self.receive.expose_provenance());
        let call = Call { kind: self.kind, datatype, op, peer, count: self.count, bytes, send, receive };
        GROUP.with_borrow_mut(|group| {
            if group.depth == 0 {
                return enqueue(communicator, &stream, vec![call]);
            }
            let mut known = group.calls.iter_mut();
            match known.find(|(c, s, _)| Arc::ptr_eq(c, &communicator) && Arc::ptr_eq(s, &stream)) {
                Some((.., calls)) => calls.push(call),
                None => group.calls.push((communicator, stream, vec![call])),
            }
            Ok(())
        })
    }
}

/// Returns an argument that only some functions have, or the default.
macro_rules! given {
    (; $default:expr) => {
        $default
    };
    ($argument:ident; $default:expr) => {
        $argument
    };
}

/// Defines the functions of the operations.
macro_rules! operations {
    ($(
        $(#[$attribute:meta])*
        $name:ident: $kind:ident, $count:ident $(, from $send:ident)? $(, to $receive:ident)? $(, op $op:ident)?
        $(, peer $peer:ident)?;
    )*) => {
        c_functions! {$(
            $(#[$attribute])*
            fn $name(
                $($send: *const c_void,)?
                $($receive: *mut c_void,)?
                $count: usize,
                datatype: u32,
                $($op: u32,)?
                $($peer: c_int,)?
                comm: *mut c_void,
                stream: *mut c_void,
            ) {
                let request = Request {
                    kind: Kind::$kind,
                    send: given!($($send)?; std::ptr::null()),
                    receive: given!($($receive)?; std::ptr::null_mut()),
                    count: $count,
                    datatype,
                    op: given!($($op)?; Op::Sum as u32),
                    peer: given!($($peer)?; 0),
                    communicator: comm,
                    stream,
                };
                request.submit()
            }
        )*}
    };
}
operations! {
    /// Computes the reduction of all ranks' elements on every rank.
    ncclAllReduce: AllReduce, count, from sendbuff, to recvbuff, op op;
    /// Concatenates all ranks' elements on every rank.
    ncclAllGather: AllGather, sendcount, from sendbuff, to recvbuff;
    /// Computes the reduction of all ranks' elements, of which each rank receives the block with its number.
    ncclReduceScatter: ReduceScatter, recvcount, from sendbuff, to recvbuff, op op;
    /// Copies the elements of one rank to every rank.
    ncclBroadcast: Broadcast, count, from sendbuff, to recvbuff, peer root;
    /// Sends elements to another rank, which must receive them.
    ncclSend: Send, count, from sendbuff, peer peer;
    /// Receives elements that another rank sends.
    ncclRecv: Receive, count, to recvbuff, peer peer;
}
