//! Values of templates that print as in Python.
use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value as Jinja, ValueKind};
use serde_json::Value;

use super::python;

/// Converts JSON, so that lists and dicts print as in Python also where a filter or an operator prints them.
pub(super) fn from_json(value: &Value) -> Jinja {
    match value {
        Value::Array(items) => {
            Jinja::from_object(PythonValue(items.iter().map(from_json).collect::<Vec<_>>().into()))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), from_json(value)));
            Jinja::from_object(PythonValue(fields.collect()))
        }
        other => Jinja::from_serialize(other),
    }
}

/// A list or a dict.
#[derive(Debug)]
struct PythonValue(Jinja);

impl Object for PythonValue {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if self.0.kind() == ValueKind::Map { ObjectRepr::Map } else { ObjectRepr::Seq }
    }

    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.0.as_object()?.get_value(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.repr() {
            ObjectRepr::Map => Enumerator::Values(self.0.try_iter().into_iter().flatten().collect()),
            _ => Enumerator::Seq(self.0.len().unwrap_or(0)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::str(&self.0))
    }
}
