//! Test case as data: operation, dtype, shapes, layouts and values. Its one-line text form is complete and
//! can be parsed again.
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Tensor};

use crate::values::{self, Domain};

/// View operation on a tensor. Each has an inverse on shapes, so that any shape can be the result of any
/// views.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum View {
    /// Swaps two dims, written `t02`.
    Transposed(usize, usize),
    /// Selects a part of a dim; `n1+2-3` has 2 elements before it and 3 after it in dim 1.
    Narrowed { dim: usize, before: usize, after: usize },
    /// Repeats one element along a dim, written `b1`.
    Broadcast(usize),
}

/// Operand of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    pub name: String,
    /// Shape that the operation receives.
    pub dims: Vec<usize>,
    /// Dtype of masks and indexes; `None` stands for the dtype of the case.
    pub dtype: Option<DType>,
    /// Views that are applied to the stored tensor, in this order.
    pub views: Vec<View>,
}

impl Operand {
    pub fn new(name: &str, dims: &[usize]) -> Self {
        Self { name: name.to_string(), dims: dims.to_vec(), dtype: None, views: Vec::new() }
    }

    pub fn with_dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    pub fn with_views(mut self, views: Vec<View>) -> Self {
        self.views = views;
        self
    }

    /// Returns the dims of the stored tensor, before the views.
    pub fn stored_dims(&self) -> Vec<usize> {
        let mut dims = self.dims.clone();
        for view in self.views.iter().rev() {
            match *view {
                View::Transposed(a, b) => dims.swap(a, b),
                View::Narrowed { dim, before, after } => dims[dim] += before + after,
                View::Broadcast(dim) => dims[dim] = 1,
            }
        }
        dims
    }

    /// Applies the views to a tensor of [`Self::stored_dims`].
    pub fn apply_views(&self, stored: &Tensor) -> candle_core::Result<Tensor> {
        let mut tensor = stored.clone();
        for (i, view) in self.views.iter().enumerate() {
            tensor = match *view {
                View::Transposed(a, b) => tensor.transpose(a, b)?,
                View::Narrowed { dim, before, after } => {
                    tensor.narrow(dim, before, tensor.dim(dim)? - before - after)?
                }
                View::Broadcast(dim) => {
                    // The number of repetitions follows from the views that come after.
                    let rest = Self { views: self.views[i + 1..].to_vec(), ..self.clone() };
                    let mut dims = tensor.dims().to_vec();
                    dims[dim] = rest.stored_dims()[dim];
                    tensor.broadcast_as(dims)?
                }
            };
        }
        Ok(tensor)
    }
}

/// Values that the operands are filled with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values {
    /// Ordinary finite numbers of the operand's domain.
    Plain,
    /// Also NaN, infinities, signed zeros, denormals, limits of integer types, and indexes out of range.
    Special,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    pub op: String,
    pub dtype: DType,
    /// Parameters of the operation other than tensors.
    pub params: Vec<(String, Vec<f64>)>,
    pub operands: Vec<Operand>,
    pub values: Values,
    pub seed: u64,
}

impl Case {
    /// Returns the numbers of a parameter.
    ///
    /// # Panics
    /// If the case has no such parameter.
    pub fn numbers(&self, name: &str) -> &[f64] {
        match self.params.iter().find(|(key, _)| key == name) {
            Some((_, numbers)) => numbers,
            None => panic!("`{self}` has no parameter {name}"),
        }
    }

    pub fn number(&self, name: &str) -> f64 {
        self.numbers(name)[0]
    }

    /// Returns a parameter that consists of sizes or dims.
    pub fn sizes(&self, name: &str) -> Vec<usize> {
        self.numbers(name).iter().map(|n| *n as usize).collect()
    }

    pub fn size(&self, name: &str) -> usize {
        self.number(name) as usize
    }

    pub fn dims(&self, operand: usize) -> &[usize] {
        &self.operands[operand].dims
    }

    /// Creates the stored tensor of each operand on the CPU, before any view.
    pub fn stored(&self, domain: impl Fn(usize) -> Domain) -> candle_core::Result<Vec<Tensor>> {
        let tensors = self.operands.iter().enumerate().map(|(i, operand)| {
            let seed = self.seed.wrapping_add(i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let dtype = operand.dtype.unwrap_or(self.dtype);
            values::tensor(&domain(i), dtype, &operand.stored_dims(), self.values, seed)
        });
        tensors.collect()
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            View::Transposed(a, b) => write!(f, "t{a}{b}"),
            View::Narrowed { dim, before, after } => write!(f, "n{dim}+{before}-{after}"),
            View::Broadcast(dim) => write!(f, "b{dim}"),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        let dims = if dims.is_empty() { "scalar".to_string() } else { dims.join("x") };
        write!(f, "{}={dims}", self.name)?;
        if let Some(dtype) = self.dtype {
            write!(f, "@{}", dtype.as_str())?;
        }
        self.views.iter().try_for_each(|view| write!(f, ":{view}"))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op={} dtype={}", self.op, self.dtype.as_str())?;
        for (name, numbers) in &self.params {
            let numbers: Vec<String> = numbers.iter().map(f64::to_string).collect();
            write!(f, " {name}=[{}]", numbers.join(","))?;
        }
        self.operands.iter().try_for_each(|operand| write!(f, " {operand}"))?;
        if self.values == Values::Special {
            write!(f, " values=special")?;
        }
        write!(f, " seed={}", self.seed)
    }
}

impl FromStr for View {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let digit = |at: usize| -> Result<usize> {
            let digit = text.as_bytes().get(at).filter(|byte| byte.is_ascii_digit());
            Ok(usize::from(digit.with_context(|| format!("view {text} has no dim"))? - b'0'))
        };
        match text.as_bytes().first() {
            Some(b't') => Ok(View::Transposed(digit(1)?, digit(2)?)),
            Some(b'b') => Ok(View::Broadcast(digit(1)?)),
            Some(b'n') => {
                let (before, after) = text[1..]
                    .split_once('+')
                    .and_then(|(_, rest)| rest.split_once('-'))
                    .with_context(|| format!("{text} is not nDIM+BEFORE-AFTER"))?;
                Ok(View::Narrowed { dim: digit(1)?, before: before.parse()?, after: after.parse()? })
            }
            _ => bail!("{text} is not a view: expected tAB, bDIM or nDIM+BEFORE-AFTER"),
        }
    }
}

fn operand(name: &str, text: &str) -> Result<Operand> {
    let mut parts = text.split(':');
    let shape = parts.next().unwrap_or_default();
    let (dims, dtype) = match shape.split_once('@') {
        Some((dims, dtype)) => (dims, Some(dtype.parse().with_context(|| format!("dtype {dtype}"))?)),
        None => (shape, None),
    };
    let dims = match dims {
        "scalar" => Vec::new(),
        dims => dims
            .split('x')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{name}={text}"))?,
    };
    let views = parts.map(str::parse).collect::<Result<_>>()?;
    Ok(Operand { name: name.to_string(), dims, dtype, views })
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let mut case = Case {
            op: String::new(),
            dtype: DType::F32,
            params: Vec::new(),
            operands: Vec::new(),
            values: Values::Plain,
            seed: 0,
        };
        for word in line.split_whitespace() {
            let (key, value) = word.split_once('=').with_context(|| format!("{word} is not KEY=VALUE"))?;
            match key {
                "op" => case.op = value.to_string(),
                "dtype" => case.dtype = value.parse().with_context(|| format!("dtype {value}"))?,
                "seed" => case.seed = value.parse().with_context(|| format!("seed {value}"))?,
                "values" if value == "special" => case.values = Values::Special,
                key => match value.strip_prefix('[').and_then(|list| list.strip_suffix(']')) {
                    Some(list) => {
                        let numbers = list.split(',').filter(|n| !n.is_empty()).map(str::parse);
                        let numbers = numbers.collect::<Result<_, _>>().with_context(|| word.to_string())?;
                        case.params.push((key.to_string(), numbers));
                    }
                    None => case.operands.push(operand(key, value)?),
                },
            }
        }
        if case.op.is_empty() {
            bail!("no op= in `{line}`");
        }
        Ok(case)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_parsed_from_its_text_form() {
        let line = "op=gather/u32 dtype=f16 dim=[1] s=[0.5,-2] x=2x3x4:t02:n1+2-0:b2 ids=2x1x4@u32 y=scalar \
                    values=special seed=17";
        let case: Case = line.parse().unwrap();
        assert_eq!(case.to_string(), line);
        assert_eq!(case.numbers("s"), [0.5, -2.0]);
        assert_eq!(case.operands[1].dtype, Some(DType::U32));
        for wrong in ["dtype=f16", "op=x y=2:q1", "op=x y=axb", "op=x s=[k]", "op=x dtype=f17", "op=x word"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn views_give_the_requested_shape() {
        let case: Case = "op=o x=2x3x4:b1:n1+1-1:t02:n0+0-2 seed=1".parse().unwrap();
        let operand = &case.operands[0];
        assert_eq!(operand.stored_dims(), [4, 1, 4]);
        let stored = case.stored(|_| Domain::Any).unwrap();
        assert_eq!(operand.apply_views(&stored[0]).unwrap().dims(), [2, 3, 4]);
    }
}
