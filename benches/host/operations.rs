//! Operations of a decode step on 16 elements, through `Tensor` and in the backend only.
use anyhow::{Context, Result};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::op::{Add, Exp, ReduceOp};
use candle_core::rocm::{RocmDevice, RocmStorage};
use candle_core::{D, DType, Device, Layout, Result as CandleResult, Shape, Storage, Tensor};

const SIDE: usize = 4;

/// Operands of the operations.
pub struct Operands {
    device: Device,
    x: Tensor,
    y: Tensor,
    row: Tensor,
    /// `row`, broadcast to the shape of `x`.
    rows: Tensor,
    transposed: Tensor,
    narrowed: Tensor,
    ids: Tensor,
    condition: Tensor,
}

impl Operands {
    pub fn new(device: &Device) -> CandleResult<Self> {
        let square = |first: f32| {
            let values: Vec<f32> = (0..SIDE * SIDE).map(|i| first + i as f32).collect();
            Tensor::from_vec(values, (SIDE, SIDE), device)
        };
        let (x, y) = (square(1.)?, square(2.)?);
        let row = Tensor::from_vec(vec![1f32; SIDE], SIDE, device)?;
        Ok(Self {
            rows: row.broadcast_as((SIDE, SIDE))?,
            transposed: x.t()?,
            narrowed: x.narrow(1, 0, SIDE / 2)?,
            ids: Tensor::from_vec(vec![0u32; SIDE], SIDE, device)?,
            condition: Tensor::from_vec(vec![1u8; SIDE * SIDE], (SIDE, SIDE), device)?,
            device: device.clone(),
            x,
            y,
            row,
        })
    }

    /// Calls `work` with the storages of the tensors.
    pub fn with_storages<R>(&self, work: impl FnOnce(&Storages) -> Result<R>) -> Result<R> {
        let Self { x, y, rows, transposed, narrowed, ids, condition, .. } = self;
        let guards = [x, y, rows, transposed, narrowed, ids, condition].map(Tensor::storage_and_layout);
        let views: Option<Vec<View>> = guards
            .iter()
            .map(|(storage, layout)| match &**storage {
                Storage::Rocm(storage) => Some(View { storage, layout }),
                _ => None,
            })
            .collect();
        let [x, y, rows, transposed, narrowed, ids, condition] =
            views.and_then(|views| views.try_into().ok()).context("not on a ROCm device")?;
        let [shape, tall] = [SIDE, 2 * SIDE].map(|rows| Shape::from((rows, SIDE)));
        let device = x.storage.device();
        work(&Storages { device, shape, tall, x, y, rows, transposed, narrowed, ids, condition })
    }
}

/// Storage with its layout.
struct View<'a> {
    storage: &'a RocmStorage,
    layout: &'a Layout,
}

/// Storages of [`Operands`].
pub struct Storages<'a> {
    device: &'a RocmDevice,
    shape: Shape,
    /// Shape of two storages, concatenated along rows.
    tall: Shape,
    x: View<'a>,
    y: View<'a>,
    rows: View<'a>,
    transposed: View<'a>,
    narrowed: View<'a>,
    ids: View<'a>,
    condition: View<'a>,
}

impl Storages<'_> {
    fn add(&self, rhs: &View) -> CandleResult<RocmStorage> {
        self.x.storage.binary_impl::<Add>(rhs.storage, self.x.layout, rhs.layout)
    }

    fn uninit(&self, shape: &Shape) -> CandleResult<RocmStorage> {
        // SAFETY: the buffer is overwritten before it is read.
        unsafe { self.device.alloc_uninit(shape, DType::F32) }
    }

    fn dense(&self, from: &View) -> CandleResult<RocmStorage> {
        let mut to = self.uninit(&self.shape)?;
        from.storage.copy_strided_src(&mut to, 0, from.layout)?;
        Ok(to)
    }
}

/// Operation in both forms. Some fused operations are not accessible in the backend.
pub struct Operation {
    pub name: &'static str,
    pub tensor: fn(&Operands) -> CandleResult<Tensor>,
    pub storage: Option<fn(&Storages) -> CandleResult<RocmStorage>>,
}

const fn operation(
    name: &'static str,
    tensor: fn(&Operands) -> CandleResult<Tensor>,
    storage: Option<fn(&Storages) -> CandleResult<RocmStorage>>,
) -> Operation {
    Operation { name, tensor, storage }
}

pub static OPERATIONS: [Operation; 15] = [
    operation("add", |o| &o.x + &o.y, Some(|s| s.add(&s.y))),
    operation("exp", |o| o.x.exp(), Some(|s| s.x.storage.unary_impl::<Exp>(s.x.layout))),
    operation("affine", |o| o.x.affine(2., 1.), Some(|s| s.x.storage.affine(s.x.layout, 2., 1.))),
    operation("broadcast add", |o| o.x.broadcast_add(&o.row), Some(|s| s.add(&s.rows))),
    operation(
        "sum over the last dim",
        |o| o.x.sum(D::Minus1),
        Some(|s| s.x.storage.reduce_op(ReduceOp::Sum, s.x.layout, &[1])),
    ),
    operation("transposed to contiguous", |o| o.transposed.contiguous(), Some(|s| s.dense(&s.transposed))),
    operation(
        "narrow and contiguous",
        |o| o.x.narrow(1, 0, SIDE / 2)?.contiguous(),
        Some(|s| s.dense(&s.narrowed)),
    ),
    operation(
        "matmul",
        |o| o.x.matmul(&o.y),
        Some(|s| s.x.storage.matmul(s.y.storage, (1, SIDE, SIDE, SIDE), s.x.layout, s.y.layout)),
    ),
    operation(
        "zeros",
        |o| Tensor::zeros((SIDE, SIDE), DType::F32, &o.device),
        Some(|s| s.device.zeros_impl(&s.shape, DType::F32)),
    ),
    operation(
        "cast to f16",
        |o| o.x.to_dtype(DType::F16),
        Some(|s| s.x.storage.to_dtype(s.x.layout, DType::F16)),
    ),
    operation(
        "index_select",
        |o| o.x.index_select(&o.ids, 0),
        Some(|s| s.x.storage.index_select(s.ids.storage, s.x.layout, s.ids.layout, 0)),
    ),
    operation("softmax_last_dim", |o| candle_nn::ops::softmax_last_dim(&o.x), None),
    operation("rms_norm", |o| candle_nn::ops::rms_norm(&o.x, &o.row, 1e-5), None),
    operation(
        "cat of two",
        |o| Tensor::cat(&[&o.x, &o.y], 0),
        Some(|s| {
            let mut to = s.uninit(&s.tall)?;
            let elements = SIDE * SIDE;
            s.x.storage.copy2d(&mut to, 1, elements, elements, 2 * elements, 0, 0)?;
            s.y.storage.copy2d(&mut to, 1, elements, elements, 2 * elements, 0, elements)?;
            Ok(to)
        }),
    ),
    operation(
        "where_cond",
        |o| o.condition.where_cond(&o.x, &o.y),
        Some(|s| {
            let (c, x, y) = (&s.condition, &s.x, &s.y);
            c.storage.where_cond(c.layout, x.storage, x.layout, y.storage, y.layout)
        }),
    ),
];
