//! The one table of operations. The fuzzer, the support table and the counts of HIP calls all walk it.
mod attention;
mod convolution_gradients;
mod convolutions;
mod copies;
mod elementwise;
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

/// What a case has besides its values.
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

/// Computes on whatever device the operands are on.
pub type Run = Box<dyn Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync>;

/// The values of an operand.
pub type DomainOf = Box<dyn Fn(&Case, usize) -> Domain + Send + Sync>;

/// The calls of HIP that an operation makes once its kernels are loaded, on a case of some elements.
#[derive(Clone, Copy, Debug)]
pub struct Calls {
    /// Kernel launches, and products of rocBLAS.
    pub launches: Launches,
    /// Copies and fills within the device, of whole buffers. Never to or from the host.
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

/// One operation.
pub struct Op {
    /// Variants that differ in a dtype are written `name/dtype`.
    pub name: String,
    /// Params and operands of a small, well-formed case.
    pub example: String,
    /// Random params and operands.
    pub plan: Box<dyn Fn(&mut Choices) -> Plan + Send + Sync>,
    pub run: Run,
    /// What the CPU runs in f64 as the reference for a bound, if that is not `run`.
    pub reference: Option<Run>,
    /// The values of an operand.
    pub domain: DomainOf,
    pub compare: Compare,
    pub calls: Calls,
    /// Whether ROCm may compute with layouts that the CPU device refuses, and with parameters for which the
    /// CPU device refuses a dtype that it has otherwise.
    pub takes_more: bool,
    /// Whether the result is bytes that the device copies to the host.
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
            takes_more: false,
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

    fn referring_to(
        mut self,
        reference: impl Fn(&Case, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        self.reference = Some(Box::new(reference));
        self
    }

    fn taking_more(mut self) -> Self {
        self.takes_more = true;
        self
    }

    fn reading_back(mut self) -> Self {
        self.reads_back = true;
        self
    }

    /// The name without the variant.
    pub fn family(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// Values of operands that are added up: no sum of a few thousand of them overflows.
fn summable(dtype: DType) -> Domain {
    match dtype {
        DType::F8E4M3 => Domain::Within(0.5),
        _ => Domain::Within(8.0),
    }
}

/// [`summable`] values without NaN and infinities.
fn finite(case: &Case, _: usize) -> Domain {
    match summable(case.dtype) {
        Domain::Within(limit) => Domain::Finite(limit),
        other => other,
    }
}

/// All operations.
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
        attention::ops,
    ];
    families.iter().flat_map(|ops| ops()).collect()
}

/// The operations of a comma list of names, families (`gather`) and beginnings of names (`conv*`). They live as long as
/// the process.
pub fn chosen(list: &str) -> &'static [Op] {
    let mut chosen = Vec::new();
    for name in list.split(',').map(str::trim) {
        let fits = |op: &Op| match name.strip_suffix('*') {
            Some(start) => op.name.starts_with(start),
            None => op.name == name || op.family() == name,
        };
        let count = chosen.len();
        chosen.extend(all().into_iter().filter(fits));
        assert!(chosen.len() > count, "the table has no operation {name}");
    }
    chosen.leak()
}

pub fn find<'a>(ops: &'a [Op], name: &str) -> Option<&'a Op> {
    ops.iter().find(|op| op.name == name)
}
