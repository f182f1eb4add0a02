//! Builder of model files that records the position of each field.

/// Bytes of a file and positions of its fields.
#[derive(Clone, Default)]
pub struct Bytes {
    pub all: Vec<u8>,
    pub fields: Vec<Field>,
}

/// Field of a file: its name in errors, and its byte range.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub start: usize,
    pub end: usize,
}

impl Bytes {
    /// Appends a field. Consecutive fields may have the same name.
    pub fn field(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
        let start = self.all.len();
        self.all.extend_from_slice(bytes);
        self.fields.push(Field { name: name.to_owned(), start, end: self.all.len() });
        self
    }

    /// Appends zeros up to a multiple of `alignment`, which belong to no field.
    pub fn align(&mut self, alignment: usize) -> &mut Self {
        self.all.resize(self.all.len().next_multiple_of(alignment), 0);
        self
    }

    /// Returns the file with the `nth` field of this name replaced.
    pub fn with(&self, name: &str, nth: usize, bytes: &[u8]) -> Vec<u8> {
        let mut named = self.fields.iter().filter(|field| field.name == name);
        let field = named.nth(nth).unwrap_or_else(|| panic!("no field {nth} of name {name:?}"));
        [&self.all[..field.start], bytes, &self.all[field.end..]].concat()
    }
}
