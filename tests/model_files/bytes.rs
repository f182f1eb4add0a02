//! A model file in the making, which knows where each of its fields lies.

/// The bytes of a file and its fields.
#[derive(Clone, Default)]
pub struct Bytes {
    pub all: Vec<u8>,
    pub fields: Vec<Field>,
}

/// A field: what errors call it, and where it lies.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub start: usize,
    pub end: usize,
}

impl Bytes {
    /// Appends a field. Several in a row may have one name.
    pub fn field(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        let start = self.all.len();
        self.all.extend_from_slice(bytes);
        self.fields.push(Field { name: name.to_owned(), start, end: self.all.len() });
        self
    }

    /// Zeros up to a multiple of `alignment`, a part of no field.
    pub fn align(&mut self, alignment: usize) -> &mut Self {
        self.all.resize(self.all.len().next_multiple_of(alignment), 0);
        self
    }

    /// The file with other bytes in the `nth` field of this name.
    pub fn with(&self, name: &str, nth: usize, bytes: &[u8]) -> Vec<u8> {
        let mut named = self.fields.iter().filter(|field| field.name == name);
        let field = named.nth(nth).unwrap_or_else(|| panic!("no field {nth} of name {name:?}"));
        [&self.all[..field.start], bytes, &self.all[field.end..]].concat()
    }
}
