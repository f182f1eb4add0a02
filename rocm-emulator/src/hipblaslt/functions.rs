//! The C functions with the prototypes of hipBLASLt 0.10 to 1.x.
use super::algorithm::{Algorithm, MatmulAlgo, MatmulHeuristicResult};
use super::descriptors::{
    CONTEXTS, Context, LAYOUTS, Layout, MATMULS, Matmul, PREFERENCES, Preference, Value,
};
use super::product::{Request, at};
use super::types::{Result, Status, StatusError, reject};
use crate::c_functions::{c_functions, not_null};
use crate::rocblas::handle::stream_on;
use crate::rocblas::problem::{Problem, Scalar};
use crate::rocblas::{compute, element};
use crate::runtime::{self, ErrorCode, HipBlasLt, HipError, Runtime};
use parking_lot::Mutex;
use std::ffi::c_void;

/// Version of ROCm 6.4's hipBLASLt: major * 100,000 + minor * 100 + patch.
const VERSION: i32 = 1200;

/// Runs a function's body and converts a panic to `InternalError`.
pub(super) fn call(function: &str, body: impl FnOnce(&'static Runtime) -> Result<()>) -> u32 {
    let outcome = runtime::catch_panic(|| {
        runtime::called(function).map_err(internal)?;
        let runtime = runtime::runtime().map_err(internal)?;
        if runtime.options.hipblaslt == HipBlasLt::Absent {
            return reject(Status::NotInitialized, "hipBLASLt is absent (configured with hipblaslt=absent)");
        }
        body(runtime)
    });
    let (code, StatusError { status, reason }) = match outcome {
        Ok(Ok(())) => return Status::Success as u32,
        Ok(Err(refusal)) if refusal.status == Status::NotSupported => (ErrorCode::NotSupported, refusal),
        Ok(Err(refusal)) if refusal.status == Status::InternalError => (ErrorCode::Unknown, refusal),
        Ok(Err(refusal)) => (ErrorCode::InvalidValue, refusal),
        Err(reason) => (ErrorCode::Unknown, StatusError { status: Status::InternalError, reason }),
    };
    runtime::note(&HipError::new(code, format!("{function}: {reason}")));
    status as u32
}

fn internal(error: HipError) -> StatusError {
    StatusError { status: Status::InternalError, reason: error.detail }
}

c_functions! {
    /// Creates a handle on the current device, on every architecture.
    fn hipblasLtCreate(handle: *mut *mut c_void) -> handle |runtime| {
        not_null(handle)?;
        CONTEXTS.insert(Context { device: runtime.current_device().map_err(internal)?.ordinal })
    }

    /// Destroys a handle. Work that was enqueued through it continues.
    fn hipblasLtDestroy(handle: *mut c_void) |_| {
        CONTEXTS.remove(handle, Status::NotInitialized)
    }

    /// Returns the version as a number.
    fn hipblasLtGetVersion(handle: *mut c_void, version: *mut i32) -> version |_| {
        CONTEXTS.get_or(handle, Status::NotInitialized)?;
        VERSION
    }

    /// Creates the descriptor of a matrix, which is validated when a product uses it.
    fn hipblasLtMatrixLayoutCreate(
        matLayout: *mut *mut c_void,
        r#type: u32,
        rows: u64,
        cols: u64,
        ld: i64,
    ) -> matLayout |_| {
        not_null(matLayout)?;
        let layout = Layout { kind: r#type, rows, columns: cols, ld, batch: 1, stride: 0, order: 0 };
        LAYOUTS.insert(Mutex::new(layout))
    }

    /// Creates the descriptor of a product.
    fn hipblasLtMatmulDescCreate(
        matmulDesc: *mut *mut c_void,
        computeType: u32,
        scaleType: u32,
    ) -> matmulDesc |_| {
        not_null(matmulDesc)?;
        MATMULS.insert(Mutex::new(Matmul::new(computeType, scaleType)))
    }

    /// Creates a preference without a workspace.
    fn hipblasLtMatmulPreferenceCreate(pref: *mut *mut c_void) -> pref |_| {
        not_null(pref)?;
        PREFERENCES.insert(Mutex::new(Preference::default()))
    }
}

/// Defines the functions that set an attribute of a descriptor and that destroy it.
macro_rules! descriptors {
    ($($table:ident: $set:ident, $destroy:ident;)*) => {
        c_functions! {$(
            /// Sets an attribute. The value must have the attribute's size.
            fn $set(descriptor: *mut c_void, attr: u32, buf: *const c_void, sizeInBytes: usize) |_| {
                let value = Value { from: buf, bytes: sizeInBytes };
                // SAFETY: the caller's value.
                unsafe { $table.get(descriptor)?.lock().set(attr, &value) }
            }

            /// Destroys a descriptor.
            fn $destroy(descriptor: *mut c_void) |_| {
                $table.remove(descriptor, Status::InvalidValue)
            }
        )*}
    };
}
descriptors! {
    LAYOUTS: hipblasLtMatrixLayoutSetAttribute, hipblasLtMatrixLayoutDestroy;
    MATMULS: hipblasLtMatmulDescSetAttribute, hipblasLtMatmulDescDestroy;
    PREFERENCES: hipblasLtMatmulPreferenceSetAttribute, hipblasLtMatmulPreferenceDestroy;
}

/// Returns the product that the descriptors define on the handle's device, without addresses and factors.
fn problem(
    runtime: &Runtime,
    context: &Context,
    matmul: &Matmul,
    layouts: [*mut c_void; 4],
) -> Result<Problem> {
    let [a, b, c, d] = layouts.map(|layout| LAYOUTS.read(layout));
    let layouts = [a?, b?, c?, d?];
    let device = runtime.device(context.device).map_err(internal)?;
    if runtime.options.hipblaslt == HipBlasLt::None {
        return reject(Status::NotSupported, "hipBLASLt has no kernels (configured with hipblaslt=none)");
    }
    Request { matmul, layouts }.problem(device.arch.name())
}

c_functions! {
    /// Returns the algorithms for a product within the preference's workspace, best first. If the library has no kernels for
    /// it, returns success and no algorithm.
    fn hipblasLtMatmulAlgoGetHeuristic(
        handle: *mut c_void,
        matmulDesc: *mut c_void,
        Adesc: *mut c_void,
        Bdesc: *mut c_void,
        Cdesc: *mut c_void,
        Ddesc: *mut c_void,
        pref: *mut c_void,
        requestedAlgoCount: i32,
        heuristicResultsArray: *mut MatmulHeuristicResult,
        returnAlgoCount: *mut i32,
    ) -> returnAlgoCount |runtime| {
        let context = CONTEXTS.get_or(handle, Status::NotInitialized)?;
        let matmul = MATMULS.read(matmulDesc)?;
        let limit = PREFERENCES.read(pref)?.max_workspace_bytes as usize;
        if requestedAlgoCount < 1 || heuristicResultsArray.is_null() || returnAlgoCount.is_null() {
            return reject(Status::InvalidValue, "no algorithm is requested, or a result pointer is null");
        }
        let found = match problem(runtime, &context, &matmul, [Adesc, Bdesc, Cdesc, Ddesc]) {
            Ok(problem) => Algorithm::suitable(&problem)
                .map(|algorithm| algorithm.result(&problem, limit))
                .filter(|result| result.workspaceSize <= limit)
                .take(requestedAlgoCount as usize)
                .collect(),
            Err(refusal) if refusal.status == Status::NotSupported => Vec::new(),
            Err(refusal) => return Err(refusal),
        };
        for (index, result) in found.iter().enumerate() {
            // SAFETY: the caller's array holds as many results as requested.
            unsafe { heuristicResultsArray.add(index).write(*result) };
        }
        found.len() as i32
    }

    /// Computes D = alpha * op(A) * op(B) + beta * C + bias. A null `algo` selects the algorithm without a workspace.
    fn hipblasLtMatmul(
        handle: *mut c_void,
        matmulDesc: *mut c_void,
        alpha: *const c_void,
        A: *const c_void,
        Adesc: *mut c_void,
        B: *const c_void,
        Bdesc: *mut c_void,
        beta: *const c_void,
        C: *const c_void,
        Cdesc: *mut c_void,
        D: *mut c_void,
        Ddesc: *mut c_void,
        algo: *const MatmulAlgo,
        workspace: *mut c_void,
        workspaceSizeInBytes: usize,
        stream: *mut c_void,
    ) |runtime| {
        let context = CONTEXTS.get_or(handle, Status::NotInitialized)?;
        let matmul = MATMULS.read(matmulDesc)?;
        let mut problem = problem(runtime, &context, &matmul, [Adesc, Bdesc, Cdesc, Ddesc])?;
        let missing = |name: &str| reject(Status::InvalidValue, format!("{name} is null"));
        let is_empty = problem.m == 0 || problem.n == 0 || problem.batch == 0;
        let (writes, reads) = (!is_empty, !is_empty && problem.k > 0);
        for (name, pointer, is_used) in [
            ("alpha", alpha, true),
            ("beta", beta, true),
            ("A", A, reads),
            ("B", B, reads),
            ("C", C, writes),
            ("D", D, writes),
        ] {
            if is_used && pointer.is_null() {
                return missing(name);
            }
        }
        if C.addr() == D.addr() && problem.c != problem.d {
            return reject(Status::InvalidValue, "C and D are at the same address with different layouts");
        }
        if let Some(bias) = &mut problem.bias {
            bias.address = matmul.bias;
            if matmul.bias == 0 {
                return missing("the bias");
            }
        }
        // SAFETY: alpha and beta are values of the scale type, f32.
        let scalar = |from| Scalar::Host(unsafe { element::read_scalar(problem.types.scalar, from) });
        (problem.alpha, problem.beta) = (scalar(alpha), scalar(beta));
        problem.a = at(problem.a, A.expose_provenance());
        problem.b = at(problem.b, B.expose_provenance());
        problem.c = at(problem.c, C.expose_provenance());
        problem.d = at(problem.d, D.expose_provenance());

        // SAFETY: the caller's algorithm is null or valid.
        let algorithm = unsafe { algo.as_ref() }.map_or(Ok(Algorithm::Whole), Algorithm::decode)?;
        let needed = algorithm.workspace(&problem);
        let at = workspace.expose_provenance();
        if needed > 0 && (needed > workspaceSizeInBytes || at == 0 || !at.is_multiple_of(16)) {
            let reason = format!(
                "a workspace of {workspaceSizeInBytes} bytes at {workspace:?}; the algorithm needs {needed} bytes, \
                 aligned to 16"
            );
            return reject(Status::InvalidValue, reason);
        }
        let Some(stream) = stream_on(context.device, stream.addr()) else {
            return reject(Status::InvalidValue, format!("{stream:?} is not a stream of the handle's device"));
        };
        if is_empty {
            return Ok(());
        }
        let work = move |memory: &_, threads| {
            if needed > 0 {
                problem.overwrite_workspace(memory, at, needed)?;
            }
            // SAFETY: the stream keeps live memory mapped while its work runs, and the runtime holds no references
            // into it.
            unsafe { compute::run(&problem, memory, threads) }
        };
        runtime.submit_host_work(&stream, work).map_err(internal)
    }
}
