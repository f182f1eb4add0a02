//! The general rule: adds a ROCm twin wherever Candle dispatches to CUDA.
//!
//! The twin is upstream's text with renamed identifiers, inserted after the original at the position reported by `syn`. No
//! code is reprinted, so comments and formatting are preserved.

use std::collections::BTreeMap;
use std::ops::Range;

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Pat, TraitItem, UseTree};

use crate::rename::{names_cuda, to_rocm};
use crate::rules::{Edit, Rule};

/// A place in upstream's file that a rule changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Line in upstream's file, from 1.
    pub line: usize,
    /// Kind of twin, or name of the special rule.
    pub rule: &'static str,
    /// First line of the changed code.
    pub text: String,
}

/// Result of the general rule for one file.
#[derive(Debug)]
pub struct Twinned {
    /// Text of the file with its twins.
    pub text: String,
    /// Places of the twins.
    pub sites: Vec<Site>,
    /// Identifiers that name CUDA and have no twin.
    pub left: Vec<Site>,
}

/// Error of the general rule.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum TwinError {
    #[error("line {line} does not parse: {reason}")]
    Parse { line: usize, reason: String },
    #[error("line {line}: {what} exists only with the feature cuda, and no rule gives its ROCm body")]
    NoBody { line: usize, what: String },
    #[error("line {line}: the alternatives of one pattern name CUDA, and so does the arm's body")]
    MixedPattern { line: usize },
}

/// Applies the general rule to a file, with the bodies given by its special rules.
///
/// # Errors
/// If the source does not parse, or names CUDA in a way that does not allow a twin.
pub fn add_twins(source: &str, rules: &[&Rule]) -> Result<Twinned, TwinError> {
    let file = syn::parse_file(source)
        .map_err(|error| TwinError::Parse { line: error.span().start().line, reason: error.to_string() })?;
    let mut twins = Twins { source, rules, ..Twins::default() };
    twins.visit_file(&file);
    if let Some(error) = twins.error {
        return Err(error);
    }
    // Collects identifiers outside of the places that were processed.
    let mut left = Vec::new();
    collect_left(file_tokens(source), &twins.treated, source, &mut left);
    let mut text = String::with_capacity(source.len() * 5 / 4);
    let mut done = 0;
    for (at, inserts) in &twins.inserts {
        text.push_str(&source[done..*at]);
        inserts.iter().for_each(|insert| text.push_str(insert));
        done = *at;
    }
    text.push_str(&source[done..]);
    Ok(Twinned { text, sites: twins.sites, left })
}

fn file_tokens(source: &str) -> TokenStream {
    // The file has been parsed before, so this cannot fail. An empty stream would only hide leftovers.
    source.parse().unwrap_or_default()
}

fn collect_left(tokens: TokenStream, treated: &[Range<usize>], source: &str, left: &mut Vec<Site>) {
    // Positions are relative to the start of `source`, as in `treated`.
    for token in tokens {
        match token {
            TokenTree::Group(group) => collect_left(group.stream(), treated, source, left),
            TokenTree::Ident(ident) if names_cuda(&ident.to_string()) => {
                let range = ident.span().byte_range();
                if !treated.iter().any(|place| place.start <= range.start && range.end <= place.end) {
                    let line = ident.span().start().line;
                    let text = source.lines().nth(line - 1).unwrap_or_default().trim().to_owned();
                    left.push(Site { line, rule: "left alone", text });
                }
            }
            _ => {}
        }
    }
}

/// Dependence of an item on the feature `cuda`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Independent of the feature.
    Open,
    /// `#[cfg(feature = "cuda")]`: an implementation.
    Cuda,
    /// `#[cfg(not(feature = "cuda"))]`: a stub.
    NotCuda,
    /// Another condition that names CUDA, or a feature that implies it.
    Other,
}

fn gate(attributes: &[Attribute]) -> Gate {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")) {
        let syn::Meta::List(list) = &attribute.meta else { continue };
        let condition: String = list.tokens.to_string().split_whitespace().collect();
        return match condition.as_str() {
            "feature=\"cuda\"" => Gate::Cuda,
            "not(feature=\"cuda\")" => Gate::NotCuda,
            "feature=\"cudnn\"" | "feature=\"cutile\"" | "feature=\"nccl\"" => Gate::Other,
            other if names_cuda(other) => Gate::Other,
            _ => continue,
        };
    }
    Gate::Open
}

#[derive(Default)]
struct Twins<'a> {
    source: &'a str,
    rules: &'a [&'a Rule],
    /// Texts to insert, by byte offset.
    inserts: BTreeMap<usize, Vec<String>>,
    /// Processed places: they have a twin, or implement CUDA.
    treated: Vec<Range<usize>>,
    sites: Vec<Site>,
    /// The type whose impl block is being visited.
    owner: String,
    error: Option<TwinError>,
}

impl<'a> Twins<'a> {
    fn text(&self, range: &Range<usize>) -> &'a str {
        &self.source[range.clone()]
    }

    fn fail(&mut self, error: TwinError) {
        self.error.get_or_insert(error);
    }

    fn insert(&mut self, at: usize, text: String) {
        self.inserts.entry(at).or_default().push(text);
    }

    fn record(&mut self, rule: &'static str, node: &Range<usize>) {
        self.treated.push(node.clone());
        let line = self.line(node.start);
        let first = self.text(node).lines().find(|line| !line.trim_start().starts_with(['#', '/']));
        self.sites.push(Site { line, rule, text: first.unwrap_or_default().trim().to_owned() });
    }

    fn line(&self, at: usize) -> usize {
        self.source[..at].matches('\n').count() + 1
    }

    /// Returns the white space before `at` on its line, or `None` if there is other text.
    fn indent(&self, at: usize) -> Option<&'a str> {
        let start = self.source[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let before = &self.source[start..at];
        before.chars().all(char::is_whitespace).then_some(before)
    }

    /// Returns the end of the line of `at` if only a comment follows, otherwise `at`.
    fn after_comment(&self, at: usize) -> usize {
        let rest = &self.source[at..];
        let line = rest.lines().next().unwrap_or_default();
        if line.trim_start().starts_with("//") { at + line.len() } else { at }
    }

    /// Inserts `twin` after the node, on separate lines if the node is on separate lines.
    fn insert_after(&mut self, node: &Range<usize>, comma: &str, blank_line: bool, twin: &str) {
        let separator = match self.indent(node.start) {
            Some(indent) => format!("{comma}{}\n{indent}", if blank_line { "\n" } else { "" }),
            None => format!("{comma} "),
        };
        let at = if comma.is_empty() { self.after_comment(node.end) } else { node.end };
        self.insert(at, format!("{separator}{twin}"));
    }

    fn clone_whole(&mut self, rule: &'static str, node: Span, comma: &str, blank_line: bool) {
        let node = node.byte_range();
        let twin = to_rocm(self.text(&node));
        self.insert_after(&node, comma, blank_line, &twin);
        self.record(rule, &node);
    }

    /// Copies the node with the body given by a special rule.
    fn clone_with_body(
        &mut self,
        rule: &'static str,
        node: Range<usize>,
        head_end: usize,
        body: &str,
        blank: bool,
    ) {
        let indent = self.indent(node.start).unwrap_or_default();
        let head = to_rocm(self.source[node.start..head_end].trim_end());
        let twin = format!("{head} {{\n{indent}    {body}\n{indent}}}");
        self.insert_after(&node, "", blank, &twin);
        self.record(rule, &node);
    }

    /// Processes a method of a trait or an impl. Returns false if its body must be visited.
    fn method(&mut self, node: Span, attributes: &[Attribute], name: &str, block: Option<Span>) -> bool {
        let range = node.byte_range();
        match (gate(attributes), names_cuda(name)) {
            (Gate::Open | Gate::NotCuda, true) => {
                self.clone_whole("method", node, "", true);
                true
            }
            (Gate::Cuda, true) => {
                let rules: &[&Rule] = self.rules;
                let found = rules.iter().find_map(|rule| match rule.edit {
                    Edit::MethodBody { owner, method, body } if owner == self.owner && method == name => {
                        Some((rule.name, body))
                    }
                    _ => None,
                });
                match (found, block) {
                    (Some((rule, body)), Some(block)) => {
                        self.clone_with_body(rule, range, block.byte_range().start, body, true);
                    }
                    _ => {
                        let line = self.line(range.start);
                        let what = format!("{}::{name}", self.owner);
                        self.fail(TwinError::NoBody { line, what });
                    }
                }
                true
            }
            (Gate::Cuda | Gate::Other, _) => {
                self.treated.push(range);
                true
            }
            (Gate::Open | Gate::NotCuda, false) => false,
        }
    }

    fn arm_body(&mut self, arm: &syn::Arm) {
        let range = arm.span().byte_range();
        let pattern: String =
            self.text(&arm.pat.span().byte_range()).chars().filter(|c| !c.is_whitespace()).collect();
        let rules: &[&Rule] = self.rules;
        let found = rules.iter().find_map(|rule| match rule.edit {
            Edit::ArmBody { pattern: wanted, body } if wanted == pattern => Some((rule.name, body)),
            _ => None,
        });
        match found {
            Some((rule, body)) => {
                let head_end = arm.body.span().byte_range().start;
                self.clone_with_body(rule, range, head_end, body, false);
            }
            None => {
                let line = self.line(range.start);
                self.fail(TwinError::NoBody { line, what: format!("the arm {pattern}") });
            }
        }
    }

    /// Adds twins inside a `use` list; the caller adds twins of whole items.
    fn use_leaves(&mut self, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.use_leaves(&path.tree),
            UseTree::Group(group) => {
                for leaf in &group.items {
                    let named = match leaf {
                        UseTree::Name(name) => names_cuda(&name.ident.to_string()),
                        UseTree::Rename(rename) => names_cuda(&rename.ident.to_string()),
                        _ => false,
                    };
                    if named {
                        let node = leaf.span().byte_range();
                        let twin = to_rocm(self.text(&node));
                        self.insert(node.end, format!(", {twin}"));
                        self.record("import", &node);
                    } else {
                        self.use_leaves(leaf);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Returns true if a `use` names CUDA in its path, so that its twin is a separate `use`.
fn path_names_cuda(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) => names_cuda(&path.ident.to_string()) || path_names_cuda(&path.tree),
        UseTree::Name(name) => names_cuda(&name.ident.to_string()),
        UseTree::Rename(rename) => names_cuda(&rename.ident.to_string()),
        UseTree::Glob(_) | UseTree::Group(_) => false,
    }
}

impl<'ast> Visit<'ast> for Twins<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let node = item.span();
        let range = node.byte_range();
        match item {
            Item::Use(item) => match gate(&item.attrs) {
                Gate::Other => self.treated.push(range),
                // A private import under the feature belongs to an implementation; a re-export is public API.
                Gate::Cuda if matches!(item.vis, syn::Visibility::Inherited) => self.treated.push(range),
                _ if path_names_cuda(&item.tree) => self.clone_whole("re-export", node, "", false),
                _ => self.use_leaves(&item.tree),
            },
            Item::Mod(item) => match gate(&item.attrs) {
                Gate::Cuda | Gate::Other => self.treated.push(range),
                _ if names_cuda(&item.ident.to_string()) => self.clone_whole("module", node, "", false),
                _ => visit::visit_item_mod(self, item),
            },
            Item::Fn(item) => match gate(&item.attrs) {
                Gate::Cuda | Gate::Other => self.treated.push(range),
                _ if names_cuda(&item.sig.ident.to_string()) => self.clone_whole("function", node, "", true),
                _ => visit::visit_item_fn(self, item),
            },
            Item::Impl(item) => {
                let of_cuda = names_cuda(self.text(&item.self_ty.span().byte_range()))
                    || item.trait_.as_ref().is_some_and(|(_, path, _)| {
                        path.segments.iter().any(|segment| names_cuda(&segment.ident.to_string()))
                    });
                match gate(&item.attrs) {
                    Gate::Cuda | Gate::Other => self.treated.push(range),
                    _ if of_cuda => self.clone_whole("impl block", node, "", true),
                    _ => {
                        self.owner = self.text(&item.self_ty.span().byte_range()).to_owned();
                        visit::visit_item_impl(self, item);
                    }
                }
            }
            Item::Struct(item) if gate(&item.attrs) == Gate::Cuda => self.treated.push(range),
            other => visit::visit_item(self, other),
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        for variant in &item.variants {
            if names_cuda(&variant.ident.to_string()) {
                self.clone_whole("variant", variant.span(), ",", false);
            }
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(method) => {
                let name = method.sig.ident.to_string();
                if !self.method(item.span(), &method.attrs, &name, Some(method.block.span())) {
                    visit::visit_impl_item_fn(self, method);
                }
            }
            ImplItem::Macro(call) if names_cuda(&call.mac.tokens.to_string()) => {
                self.clone_whole("macro call", item.span(), "", false);
            }
            other => visit::visit_impl_item(self, other),
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        match item {
            TraitItem::Fn(method) => {
                let name = method.sig.ident.to_string();
                let block = method.default.as_ref().map(|block| block.span());
                if !self.method(item.span(), &method.attrs, &name, block) {
                    visit::visit_trait_item_fn(self, method);
                }
            }
            other => visit::visit_trait_item(self, other),
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let pattern = arm.pat.span().byte_range();
        if !names_cuda(self.text(&pattern)) {
            visit::visit_arm(self, arm);
            return;
        }
        if gate(&arm.attrs) == Gate::Cuda {
            self.arm_body(arm);
            return;
        }
        if let Pat::Or(alternatives) = &arm.pat {
            // Copying the arm would repeat the other alternatives, so only CUDA's is copied.
            if names_cuda(self.text(&arm.body.span().byte_range())) {
                let line = self.line(pattern.start);
                self.fail(TwinError::MixedPattern { line });
                return;
            }
            for case in &alternatives.cases {
                let node = case.span().byte_range();
                if names_cuda(self.text(&node)) {
                    let twin = to_rocm(self.text(&node));
                    self.insert(node.end, format!(" | {twin}"));
                    self.record("alternative", &node);
                }
            }
            return;
        }
        // The last arm may lack a comma, which its twin needs before it.
        let braced = matches!(*arm.body, syn::Expr::Block(_));
        let comma = if arm.comma.is_none() && !braced { "," } else { "" };
        self.clone_whole("arm", arm.span(), comma, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twinned(source: &str) -> String {
        add_twins(source, &[]).unwrap().text
    }

    #[test]
    fn an_arm_is_doubled_with_its_comments_and_odd_formatting() {
        let source = "fn f(d: &Device) -> u8 {
    match d {
        Device::Cpu => 0,
        // Counted by ordinal.
        Device::Cuda(c)   =>   { // the cuda device
            c.ordinal( )
        }
        Device::Metal(_) => 2,
    }
}
";
        let expected = "fn f(d: &Device) -> u8 {
    match d {
        Device::Cpu => 0,
        // Counted by ordinal.
        Device::Cuda(c)   =>   { // the cuda device
            c.ordinal( )
        }
        Device::Rocm(c)   =>   { // the rocm device
            c.ordinal( )
        }
        Device::Metal(_) => 2,
    }
}
";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn a_last_arm_without_a_comma_gets_one() {
        let source =
            "fn f() {\n    match d {\n        D::Cpu => a(),\n        D::Cuda(x) => b(x)\n    }\n}\n";
        let expected = "fn f() {\n    match d {\n        D::Cpu => a(),\n        D::Cuda(x) => b(x),\n        D::Rocm(x) => b(x)\n    }\n}\n";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn a_comment_after_an_arm_stays_with_it() {
        let source =
            "fn f() {\n    match d {\n        D::Cuda(x) => b(x), // fast\n        _ => c(),\n    }\n}\n";
        let expected = "fn f() {\n    match d {\n        D::Cuda(x) => b(x), // fast\n        D::Rocm(x) => b(x),\n        _ => c(),\n    }\n}\n";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn an_arm_inside_a_twinned_arm_is_not_doubled_again() {
        let source = "fn f() {
    match q {
        Q::Cuda(q) => match s {
            S::Cuda(s) => q.go(s),
            _ => no(),
        },
        Q::Cpu => match s {
            S::Cuda(s) => up(s),
            _ => no(),
        },
    }
}
";
        let expected = "fn f() {
    match q {
        Q::Cuda(q) => match s {
            S::Cuda(s) => q.go(s),
            _ => no(),
        },
        Q::Rocm(q) => match s {
            S::Rocm(s) => q.go(s),
            _ => no(),
        },
        Q::Cpu => match s {
            S::Cuda(s) => up(s),
            S::Rocm(s) => up(s),
            _ => no(),
        },
    }
}
";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn only_the_cuda_alternative_is_doubled() {
        let source = "fn f() -> bool {\n    match d {\n        D::Cuda(_) | D::Metal(_) => true,\n        D::Cpu => false,\n    }\n}\n";
        let expected = "fn f() -> bool {\n    match d {\n        D::Cuda(_) | D::Rocm(_) | D::Metal(_) => true,\n        D::Cpu => false,\n    }\n}\n";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn variants_keep_their_docs_and_attributes() {
        let source = "enum Error {
    /// From CUDA.
    #[error(\"no cuda\")]
    Cuda(u8),
    NoCuda
}
";
        let expected = "enum Error {
    /// From CUDA.
    #[error(\"no cuda\")]
    Cuda(u8),
    /// From ROCm.
    #[error(\"no rocm\")]
    Rocm(u8),
    NoCuda,
    NoRocm
}
";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn methods_of_types_and_traits_are_doubled() {
        let source = "impl Device {
    /// Opens a CUDA device.
    pub fn new_cuda(i: usize) -> Self {
        Self::Cuda(i)
    }
}

trait Op {
    fn cuda_fwd(&self, s: &CudaStorage) -> u8;
}
";
        let expected = "impl Device {
    /// Opens a CUDA device.
    pub fn new_cuda(i: usize) -> Self {
        Self::Cuda(i)
    }

    /// Opens a ROCm device.
    pub fn new_rocm(i: usize) -> Self {
        Self::Rocm(i)
    }
}

trait Op {
    fn cuda_fwd(&self, s: &CudaStorage) -> u8;

    fn rocm_fwd(&self, s: &RocmStorage) -> u8;
}
";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn impl_blocks_functions_and_macro_calls_are_doubled() {
        let source = "impl From<u8> for CudaError {
    fn from(_: u8) -> Self {
        Self
    }
}

fn cuda_there() -> bool {
    true
}

impl Op for X {
    forward!(cuda_fwd, CudaStorage);
    forward!(cpu_fwd, CpuStorage);
}
";
        let text = twinned(source);
        assert!(text.contains(
            "}\n\nimpl From<u8> for RocmError {\n    fn from(_: u8) -> Self {\n        Self\n    }\n}\n"
        ));
        assert!(text.contains("}\n\nfn rocm_there() -> bool {\n    true\n}\n"));
        assert!(text.contains(
            "    forward!(cuda_fwd, CudaStorage);\n    forward!(rocm_fwd, RocmStorage);\n    forward!(cpu_fwd, CpuStorage);\n"
        ));
    }

    #[test]
    fn imports_are_doubled_in_their_list_and_reexports_as_a_whole() {
        let source = "use crate::{CpuStorage, CudaStorage, Layout};
mod dummy_cuda;
#[cfg(feature = \"cuda\")]
pub use cuda_backend as cuda;
#[cfg(not(feature = \"cuda\"))]
mod cuda {
    pub use super::dummy_cuda::*;
}
pub use cuda::{CudaDevice, CudaStorage};
";
        let expected = "use crate::{CpuStorage, CudaStorage, RocmStorage, Layout};
mod dummy_cuda;
mod dummy_rocm;
#[cfg(feature = \"cuda\")]
pub use cuda_backend as cuda;
#[cfg(feature = \"rocm\")]
pub use rocm_backend as rocm;
#[cfg(not(feature = \"cuda\"))]
mod cuda {
    pub use super::dummy_cuda::*;
}
#[cfg(not(feature = \"rocm\"))]
mod rocm {
    pub use super::dummy_rocm::*;
}
pub use cuda::{CudaDevice, CudaStorage};
pub use rocm::{RocmDevice, RocmStorage};
";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn cuda_implementations_have_no_twin() {
        let source = "#[cfg(feature = \"cuda\")]
mod cuda {
    fn cuda_fwd(c: Cuda) {}
}
#[cfg(feature = \"cuda\")]
use x::cuda_backend::ffi;
#[cfg(feature = \"cudnn\")]
pub use cuda_backend::cudnn;
impl Q {
    #[cfg(feature = \"cuda\")]
    fn guard(&self) {
        match self {
            Q::Cuda(c) => c.guard(),
            Q::Cpu => {}
        }
    }
}
";
        let twinned = add_twins(source, &[]).unwrap();
        assert_eq!(twinned.text, source);
        assert_eq!(twinned.left, []);
    }

    const FUSED: &str = "impl Op for Norm {
    #[cfg(feature = \"cuda\")]
    fn cuda_fwd(&self, s: &CudaStorage) -> Result<CudaStorage> {
        use cudarc::driver::CudaSlice;
        launch(s)
    }
}
";

    #[test]
    fn a_rule_gives_the_body_of_a_cuda_only_method() {
        let rule = Rule {
            name: "norm",
            file: "ops.rs",
            expect: 1,
            edit: Edit::MethodBody {
                owner: "Norm",
                method: "cuda_fwd",
                body: "crate::rocm::norm(self.eps, s)",
            },
        };
        let twinned = add_twins(FUSED, &[&rule]).unwrap();
        let expected = FUSED.strip_suffix("}\n").unwrap().to_owned()
            + "
    #[cfg(feature = \"rocm\")]
    fn rocm_fwd(&self, s: &RocmStorage) -> Result<RocmStorage> {
        crate::rocm::norm(self.eps, s)
    }
}
";
        assert_eq!(twinned.text, expected);
        assert_eq!(twinned.sites.len(), 1);
        assert_eq!((twinned.sites[0].rule, twinned.sites[0].line), ("norm", 2));
    }

    #[test]
    fn a_cuda_only_body_without_a_rule_is_an_error() {
        let error = add_twins(FUSED, &[]).unwrap_err();
        assert!(matches!(&error, TwinError::NoBody { line: 2, what } if what == "Norm::cuda_fwd"), "{error}");
        let arm = "fn f() {\n    match d {\n        #[cfg(feature = \"cuda\")]\n        D::Cuda(c) => c.go(),\n        _ => {}\n    }\n}\n";
        let error = add_twins(arm, &[]).unwrap_err();
        assert!(
            matches!(&error, TwinError::NoBody { line: 3, what } if what == "the arm D::Cuda(c)"),
            "{error}"
        );
    }

    #[test]
    fn a_rule_gives_the_body_of_a_cuda_only_arm() {
        let source = "fn f() {\n    match d {\n        #[cfg(feature = \"cuda\")]\n        D::Cuda(c) => {\n            c.go()\n        }\n        _ => {}\n    }\n}\n";
        let edit = Edit::ArmBody { pattern: "D::Cuda(c)", body: "c.walk()" };
        let rule = Rule { name: "go", file: "f.rs", expect: 1, edit };
        let expected = "fn f() {\n    match d {\n        #[cfg(feature = \"cuda\")]\n        D::Cuda(c) => {\n            c.go()\n        }\n        #[cfg(feature = \"rocm\")]\n        D::Rocm(c) => {\n            c.walk()\n        }\n        _ => {}\n    }\n}\n";
        assert_eq!(add_twins(source, &[&rule]).unwrap().text, expected);
    }

    #[test]
    fn mentions_without_a_twin_are_reported() {
        let source = "fn f(s: &Storage) {\n    if let Storage::Cuda(c) = s {\n        c.go();\n    }\n}\n";
        let twinned = add_twins(source, &[]).unwrap();
        assert_eq!(twinned.text, source);
        assert_eq!(twinned.left.len(), 1);
        assert_eq!(twinned.left[0].line, 2);
    }

    #[test]
    fn non_ascii_text_does_not_shift_positions() {
        let source = "// naïve – 日本\nenum D {\n    Cuda(u8), // ü\n    Cpu,\n}\n";
        let expected = "// naïve – 日本\nenum D {\n    Cuda(u8),\n    Rocm(u8), // ü\n    Cpu,\n}\n";
        assert_eq!(twinned(source), expected);
    }

    #[test]
    fn a_file_without_cuda_is_unchanged() {
        let source = "  fn  f ( )->u8{1}//x\r\n\n\n";
        assert_eq!(twinned(source), source);
    }

    #[test]
    fn source_that_does_not_parse_is_an_error_with_its_line() {
        let error = add_twins("fn f() {}\nfn {\n", &[]).unwrap_err();
        assert!(matches!(error, TwinError::Parse { line: 2, .. }), "{error}");
    }
}
