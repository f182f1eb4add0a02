//! Table of operations, shared by the fuzzer, the support table and the counts of HIP calls.
mod attention;
mod convolution_gradients;
mod convolutions;
mod copies;
mod elementwise;
mod fused;
mod indexing;
mod layers;
mod products;
mod quantized;
mod reduce;
mod spatial;

use std::sync::LazyLock;

use candle_core::{DType, Result, Tensor};

use crate::case::{Case, Operand};
use crate::compare::{Bound, Compare};
use crate::strategy::Choices;
use crate::values::Domain;

/// Parameters and operands of a case, without values.
#[derive(Default)]
pub struct Plan {
    pub params: Vec<(String, Vec<f64>)>,
    pub operands: Vec<Operand>,
}

impl Plan {
    pub fn of(operands: impl IntoIterator<Item = Operand>) -> Self {
        Self { params: Vec::new(), operands: operands.into_iter().collect() }
    }

    pub fn param(mut self, name: &str, numbers: &[f64]) -> Self {
        self.params.push((name.to_string(), numbers.to_vec()));
        self
    }

    pub fn sizes(self, name: &str, sizes: &[usize]) -> Self {
        let numbers: Vec<f64> = sizes.iter().map(|size| *size as f64).collect();
        self.param(name, &numbers)
    }
}

/// Computes an operation on the device of its operands.
pub type Run = Box<dyn Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync>;

/// Returns the domain of an operand's values.
pub type DomainOf = Box<dyn Fn(&Case, usize) -> Domain + Send + Sync>;

/// HIP calls of an operation on a non-empty case, after its kernels are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Number of kernel launches and library calls that compute.
    pub launches: Launches,
    /// Maximum number of copies and fills of whole buffers on the device.
    pub copies: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Launches {
    Exactly(u64),
    AtMost(u64),
}

pub const ONE_LAUNCH: Calls = Calls { launches: Launches::Exactly(1), copies: 0 };

pub const fn at_most(launches: u64) -> Calls {
    Calls { launches: Launches::AtMost(launches), copies: 0 }
}

/// Operation of the table.
pub struct Op {
    /// Name; variants for an additional dtype are named `name/dtype`.
    pub name: String,
    /// Parameters and operands of a small valid case.
    pub example: String,
    /// Generates random parameters and operands.
    pub plan: Box<dyn Fn(&mut Choices) -> Plan + Send + Sync>,
    pub run: Run,
    /// Computes the f64 reference on the CPU, if different from `run`.
    pub reference: Option<Run>,
    /// Returns the domain of an operand's values.
    pub domain: DomainOf,
    pub compare: Compare,
    pub calls: Calls,
    /// True if ROCm may accept layouts, and combinations of parameters and dtype, that the CPU device
    /// rejects.
    pub accepts_more: bool,
    /// True if the operation copies its result to the host.
    pub reads_back: bool,
}

impl Op {
    fn new(
        name: impl Into<String>,
        example: impl Into<String>,
        plan: impl Fn(&mut Choices) -> Plan + Send + Sync + 'static,
        run: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            example: example.into(),
            plan: Box::new(plan),
            run: Box::new(run),
            reference: None,
            domain: Box::new(|_, _| Domain::Any),
            compare: Compare::Bits,
            calls: ONE_LAUNCH,
            accepts_more: false,
            reads_back: false,
        }
    }

    fn compared(mut self, compare: Compare) -> Self {
        self.compare = compare;
        self
    }

    fn within(self, bound: Bound) -> Self {
        self.compared(Compare::Close(bound))
    }

    fn on(mut self, domain: impl Fn(&Case, usize) -> Domain + Send + Sync + 'static) -> Self {
        self.domain = Box::new(domain);
        self
    }

    fn calling(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }

    fn with_reference(
        mut self,
        reference: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.reference = Some(Box::new(reference));
        self
    }

    fn accepting_more(mut self) -> Self {
        self.accepts_more = true;
        self
    }

    fn reading_back(mut self) -> Self {
        self.reads_back = true;
        self
    }

    /// Returns the name without the variant.
    pub fn family(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Domain of operands that are summed: a sum of a few thousand values does not overflow.
fn summable(dtype: DType) -> Domain {
    match dtype {
        DType::F8E4M3 => Domain::Within(0.5),
        _ => Domain::Within(8.0),
    }
}

/// Domain of [`summable`] values without NaN and infinities.
fn finite(case: &Case, _: usize) -> Domain {
    match summable(case.dtype) {
        Domain::Within(limit) => Domain::Finite(limit),
        other => other,
    }
}

/// Returns all operations.
pub fn table() -> &'static [Op] {
    static TABLE: LazyLock<Vec<Op>> = LazyLock::new(all);
    &TABLE
}

fn all() -> Vec<Op> {
    let families = [
        elementwise::ops,
        reduce::ops,
        copies::ops,
        indexing::ops,
        products::ops,
        convolutions::ops,
        spatial::ops,
        convolution_gradients::ops,
        layers::ops,
        quantized::ops,
        fused::ops,
        attention::ops,
    ];
    families.iter().flat_map(|ops| ops()).collect()
}

/// Returns the operations of a comma-separated list of names, families (`gather`) and prefixes (`conv*`).
///
/// # Panics
/// If an entry matches no operation.
pub fn select(list: &str) -> &'static [Op] {
    let mut selected = Vec::new();
    for name in list.split(',').map(str::trim) {
        let matches = |op: &Op| match name.strip_suffix('*') {
            Some(start) => op.name.starts_with(start),
            None => op.name == name || op.family() == name,
        };
        let count = selected.len();
        selected.extend(all().into_iter().filter(matches));
        assert!(selected.len() > count, "unknown operation {name}");
    }
    selected.leak()
}

pub fn find<'a>(ops: &'a [Op], name: &str) -> Option<&'a Op> {
    ops.iter().find(|op| op.name == name)
}
