//! Rows of a step by adapter, and the products with its matrices.
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::targets::Target;
use super::weights::{Adapter, AdapterMatrices, LowRankProduct};
use crate::model::layers::{FusedWith, Linear};

/// Rows of a step that use adapters.
#[derive(Default)]
pub struct AdapterRows {
    groups: Vec<Group>,
    rank: usize,
}

/// Rows that use the same adapter.
struct Group {
    matrices: Arc<AdapterMatrices>,
    /// Indices, u32; `None` for all rows of the step.
    rows: Option<Tensor>,
}

impl AdapterRows {
    /// Groups rows of a rank, which are given by the adapters of sequences and their numbers of rows. Uploads nothing if all
    /// rows use the same adapter or none.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn new<'a>(
        sequences: impl Iterator<Item = (Option<&'a Arc<Adapter>>, usize)>,
        (rank, device): (usize, &Device),
    ) -> Result<Self> {
        let mut groups: Vec<(&Arc<Adapter>, Vec<u32>)> = Vec::new();
        let mut row = 0;
        for (adapter, rows) in sequences {
            let range = row..row + rows as u32;
            row = range.end;
            let Some(adapter) = adapter.filter(|_| rows > 0) else { continue };
            match groups.iter_mut().find(|(known, _)| *known == adapter) {
                Some((_, rows)) => rows.extend(range),
                None => groups.push((adapter, range.collect())),
            }
        }
        let indices: Vec<u32> = groups.iter().flat_map(|(_, rows)| rows).copied().collect();
        let is_uniform = groups.len() == 1 && indices.len() == row as usize;
        let indices = match groups.is_empty() || is_uniform {
            true => None,
            false => Some(Tensor::from_slice(&indices, indices.len(), device)?),
        };
        let mut first = 0;
        let mut group = |(adapter, rows): (&Arc<Adapter>, Vec<u32>)| {
            let indices = indices.as_ref().map(|indices| indices.narrow(0, first, rows.len()));
            first += rows.len();
            Ok(Group { matrices: adapter.matrices(), rows: indices.transpose()? })
        };
        Ok(Self { groups: groups.into_iter().map(&mut group).collect::<Result<_>>()?, rank })
    }

    /// Computes the deltas that the adapters add to the output of a layer's projections of `x`. Computes the first of their
    /// two products now, and the second one when they are added.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn deltas(
        &self,
        layer: usize,
        target: Target,
        (x, with): (&Tensor, FusedWith),
    ) -> Result<Deltas<'_>> {
        let mut parts = Vec::new();
        for Group { matrices, rows } in &self.groups {
            let Some(product) = matrices.product(self.rank, layer, target) else { continue };
            // The output of attention may have another type than the states.
            let x = x.to_dtype(matrices.dtype)?;
            let inner = match rows {
                Some(rows) => product.down.forward_fused(&x.index_select(rows, 0)?, with)?,
                None => product.down.forward_fused(&x, with)?,
            };
            parts.push(Delta { rows: rows.as_ref(), inner, up: &product.up });
        }
        Ok(Deltas { parts })
    }
}

impl AdapterRows {
    /// Returns the rows of each adapter that changes a layer's `targets`, with its matrices.
    pub(super) fn products<const N: usize>(
        &self,
        layer: usize,
        targets: [Target; N],
    ) -> impl Iterator<Item = (Option<&Tensor>, [&LowRankProduct; N])> {
        self.groups.iter().filter_map(move |Group { matrices, rows }| {
            let products = targets.map(|target| matrices.product(self.rank, layer, target));
            let products: Vec<_> = products.into_iter().flatten().collect();
            Some((rows.as_ref(), products.try_into().ok()?))
        })
    }
}

/// Summands of the output of a layer's projections.
#[derive(Default)]
pub struct Deltas<'a> {
    parts: Vec<Delta<'a>>,
}

/// Summand for the rows of one adapter.
struct Delta<'a> {
    rows: Option<&'a Tensor>,
    /// Product with the first matrix, (rows, rank).
    inner: Tensor,
    up: &'a Linear,
}

impl<'a> Deltas<'a> {
    /// Returns the summands of all rows for the product with one adapter.
    pub(super) fn of_all(product: &'a LowRankProduct, x: &Tensor) -> Result<Self> {
        let inner = product.down.forward(x)?;
        Ok(Self { parts: vec![Delta { rows: None, inner, up: &product.up }] })
    }
}

impl Deltas<'_> {
    /// Returns true if there is no delta for any row.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the indices of the rows that have a delta; `None` for all rows.
    pub(super) fn rows(&self) -> Result<Option<Tensor>> {
        let rows: Option<Vec<&Tensor>> = self.parts.iter().map(|part| part.rows).collect();
        rows.map(|rows| Tensor::cat(&rows, 0)).transpose()
    }

    /// Returns the summands of the rows that [`Self::rows`] returns, in their order.
    pub(super) fn values(&self) -> Result<Tensor> {
        let values = self.parts.iter().map(|part| part.up.forward(&part.inner));
        Tensor::cat(&values.collect::<Result<Vec<_>>>()?, 0)
    }

    /// Adds the summands to the output (rows, out). Other rows stay the same.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn add(&self, mut out: Tensor) -> Result<Tensor> {
        for Delta { rows, inner, up } in &self.parts {
            out = match rows {
                Some(rows) => out.index_add(rows, &up.forward(inner)?.to_dtype(out.dtype())?, 0)?,
                None => {
                    let residual = Some(&out);
                    up.forward_fused(inner, FusedWith { residual, ..FusedWith::default() })?
                }
            };
        }
        Ok(out)
    }

    /// Like [`Self::add`], for outputs that are computed by several products.
    ///
    /// # Errors
    /// See [`Self::add`].
    pub fn add_to_parts(&self, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        if let ([_], false) | (_, true) = (&outputs[..], self.is_empty()) {
            return outputs.into_iter().map(|out| self.add(out)).collect();
        }
        let (rows, values) = (self.rows()?, self.values()?);
        let mut first = 0;
        let add = |out: Tensor| {
            let columns: Range<usize> = first..first + out.dim(1)?;
            first = columns.end;
            let values = values.narrow(1, columns.start, columns.len())?.contiguous()?;
            match &rows {
                Some(rows) => out.index_add(rows, &values, 0),
                None => out + values,
            }
        };
        outputs.into_iter().map(add).collect()
    }
}
