//! Makes upstream's own test files test the ROCm device.
//!
//! A test counts as a ROCm test when it is one of four kinds. `test_device!` runs a function on each
//! device, and the rule `test-device` of candle-core gives the macro its ROCm test. A test written for
//! the CPU device has a twin in a module `on_rocm` beside it, where `Device::Cpu` is the ROCm device.
//! A test that upstream compiles for Metal only is compiled for ROCm instead. Where a file's tests open a
//! CUDA device, they open ROCm's.
//! What is expected of each file, and which tests stay alone, says [`crate::suite_rules`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use proc_macro2::TokenTree;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemFn};

use crate::suite_rules::{LISTS, Listed, Lists, Reworded, SUITES, SuiteRules};
use crate::twins::{TwinError, add_twins};
use crate::words::{Word, called, cpu_places, imports_cpu, path_follows, words};

/// One of upstream's test files, made to test the ROCm device.
#[derive(Debug)]
pub struct Suite {
    /// What is expected of it.
    pub rules: &'static SuiteRules,
    /// The text of a module named like the suite.
    pub text: String,
    /// Its tests of the ROCm device, in the order of the file.
    pub tests: Vec<RocmTest>,
}

/// A test of the ROCm device, as upstream's source has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RocmTest {
    /// Its name in upstream's file; of a macro that wraps `test_device!`, the macro's name with a `!`.
    pub name: String,
    /// Where it comes from.
    pub kind: Kind,
    /// The test functions that it consists of, by their path below the suite. Only a macro has several.
    pub functions: Vec<String>,
    /// Why it is expected to fail, if it is.
    pub skipped: Option<&'static str>,
}

/// Where a test of the ROCm device comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A `test_device!`.
    Device,
    /// The twin of a test for the CPU device.
    Twin,
    /// A test that upstream has for Metal only.
    Metal,
    /// A test that opens a CUDA device, in a file of such tests.
    Cuda,
}

/// Why a test file could not be rewritten.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what each is")]
pub enum SuiteError {
    #[error("{path}: {source}")]
    Io { path: String, source: std::io::Error },
    #[error("{file}, {source}")]
    Twin { file: String, source: TwinError },
    #[error("line {line} does not parse: {reason}")]
    Parse { line: usize, reason: String },
    #[error(
        "{crate_name} has test files that are not as the list says: {files}; look at them and mend SUITES in \
         rocmify/src/suite_rules.rs"
    )]
    Files { crate_name: String, files: String },
    #[error(
        "{suite} has {found} ROCm tests of the kind {kind:?}, the list says {expect}: upstream changed, or \
         the transformation lost some (SUITES in rocmify/src/suite_rules.rs)"
    )]
    Count { suite: String, kind: Kind, expect: usize, found: usize },
    #[error(
        "{suite}: REWORDED in rocmify/src/suite_rules.rs looks for `{from}` once in `{test}`, which has it \
         {found} times: upstream changed"
    )]
    Reworded { suite: String, test: String, from: String, found: usize },
    #[error(
        "{suite}: {list} in rocmify/src/suite_rules.rs names `{test}`, which is no such test of upstream's"
    )]
    Stale { suite: String, list: &'static str, test: String },
    #[error(
        "{suite}: `{test}` exists with the feature cuda only and is not in NOT_TWINNED \
         (rocmify/src/suite_rules.rs)"
    )]
    CudaOnly { suite: String, test: String },
}

/// Reads and rewrites the test files of an upstream crate, whose folder (with `tests/`) is `upstream`.
/// Files that the list leaves out have an empty text and no tests.
///
/// # Errors
/// When a file cannot be read or parsed, when there are other files than [`SUITES`] lists, or when a file
/// has not the tests that the lists say.
pub fn rocmify_suites(crate_name: &str, upstream: &Path) -> Result<Vec<Suite>, SuiteError> {
    let dir = upstream.join("tests");
    let rows: Vec<_> = SUITES.iter().filter(|rules| rules.crate_name == crate_name).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(&dir).map_err(|source| io(&dir, source))? {
        let path = entry.map_err(|source| io(&dir, source))?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    let listed: BTreeSet<_> = rows.iter().map(|rules| rules.name.to_owned()).collect();
    if found != listed {
        let files: Vec<_> = found.symmetric_difference(&listed).map(String::as_str).collect();
        return Err(SuiteError::Files { crate_name: crate_name.to_owned(), files: files.join(", ") });
    }
    rows.into_iter()
        .map(|rules| {
            if rules.left_out.is_some() {
                return Ok(Suite { rules, text: String::new(), tests: Vec::new() });
            }
            let path = dir.join(format!("{}.rs", rules.name));
            let source = fs::read_to_string(&path).map_err(|source| io(&path, source))?;
            let (text, tests) = match rules.cuda {
                0 => rocmify_suite(rules.name, &source, &LISTS)?,
                _ => cuda_to_rocm(rules.name, &source)?,
            };
            for (kind, expect) in [
                (Kind::Device, rules.device),
                (Kind::Twin, rules.twins),
                (Kind::Metal, rules.metal),
                (Kind::Cuda, rules.cuda),
            ] {
                let found = tests.iter().filter(|test| test.kind == kind).count();
                if found != expect {
                    return Err(SuiteError::Count { suite: rules.name.to_owned(), kind, expect, found });
                }
            }
            Ok(Suite { rules, text, tests })
        })
        .collect()
}

fn io(path: &Path, source: std::io::Error) -> SuiteError {
    SuiteError::Io { path: path.display().to_string(), source }
}

/// Rewrites one file, and says which ROCm tests it then has.
///
/// # Errors
/// When the source does not parse, or one of the lists names a test or a text that it has not.
pub fn rocmify_suite(
    suite: &str,
    source: &str,
    lists: &Lists<'_>,
) -> Result<(String, Vec<RocmTest>), SuiteError> {
    let alone: Vec<&str> = tests_of(lists.not_twinned, suite).map(|(test, _)| test).collect();
    let reworded: Vec<Reworded> =
        lists.reworded.iter().filter(|place| place.suite == suite).copied().collect();
    let text = add_twins(source, &[])
        .map_err(|source| SuiteError::Twin { file: format!("{suite}.rs"), source })?
        .text;
    let text = both_gpus(&text)?;
    let text = in_own_module(&text, suite)?;
    let mut rewrite =
        Rewrite { suite, alone: &alone, reworded: &reworded, text: &text, ..Rewrite::default() };
    let file = parse(&text)?;
    rewrite.words = words(&text);
    let metal_file = file.attrs.iter().find(|attribute| needs(attribute, "metal"));
    rewrite.bare_cpu = imports_cpu(&file.items, &text);
    if let Some(attribute) = metal_file {
        rewrite.compile_for_rocm(attribute.span().byte_range());
    }
    rewrite.module(&file.items, "", metal_file.is_some(), text.len())?;
    for test in &alone {
        if !rewrite.left_alone.contains(*test) {
            return Err(stale(suite, "NOT_TWINNED", test));
        }
    }
    let mut tests = rewrite.tests;
    for place in &reworded {
        let is_it = |test: &RocmTest| test.name == place.test;
        if !tests.iter().any(is_it) {
            return Err(stale(suite, "REWORDED", place.test));
        }
    }
    for (name, reason) in tests_of(lists.skipped, suite) {
        let test = tests.iter_mut().find(|test| test.name == name);
        test.ok_or_else(|| stale(suite, "SKIPPED", name))?.skipped = Some(reason);
    }
    Ok((rewrite.edits.apply(&text), tests))
}

/// Rewrites a file whose tests open a CUDA device: all of them open ROCm's.
///
/// # Errors
/// When the source does not parse.
pub fn cuda_to_rocm(suite: &str, source: &str) -> Result<(String, Vec<RocmTest>), SuiteError> {
    let mut edits = Edits::default();
    for word in words(source).into_iter().filter(|word| word.text == "new_cuda") {
        edits.replace(word.place, "new_rocm");
    }
    let text = in_own_module(&edits.apply(source), suite)?;
    let tests = parse(&text)?.items.into_iter().filter_map(|item| match item {
        Item::Fn(function) if has(&function.attrs, "test") => {
            let name = function.sig.ident.to_string();
            Some(RocmTest { functions: vec![name.clone()], name, kind: Kind::Cuda, skipped: None })
        }
        _ => None,
    });
    Ok((text, tests.collect()))
}

fn tests_of<'a>(
    list: &'a [Listed],
    suite: &'a str,
) -> impl Iterator<Item = (&'static str, &'static str)> + 'a {
    let of_suite = list.iter().filter(move |listed| listed.suite == suite);
    of_suite.flat_map(|listed| listed.tests.iter().map(|test| (*test, listed.reason)))
}

fn stale(suite: &str, list: &'static str, test: &str) -> SuiteError {
    SuiteError::Stale { suite: suite.to_owned(), list, test: test.to_owned() }
}

fn parse(text: &str) -> Result<syn::File, SuiteError> {
    syn::parse_file(text)
        .map_err(|error| SuiteError::Parse { line: error.span().start().line, reason: error.to_string() })
}

/// Replacements by place in a text.
#[derive(Default)]
struct Edits(BTreeMap<(usize, usize), String>);

impl Edits {
    fn replace(&mut self, place: Range<usize>, with: impl Into<String>) {
        self.0.insert((place.start, place.end), with.into());
    }

    fn insert(&mut self, at: usize, text: impl Into<String>) {
        self.replace(at..at, text);
    }

    fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() * 3 / 2);
        let mut done = 0;
        for ((start, end), with) in &self.0 {
            out.push_str(&text[done..*start]);
            out.push_str(with);
            done = *end;
        }
        out.push_str(&text[done..]);
        out
    }
}

/// Where upstream asks for CUDA to allow a GPU's rounding, ROCm is meant as well.
fn both_gpus(text: &str) -> Result<String, SuiteError> {
    struct Calls<'a> {
        text: &'a str,
        edits: Edits,
    }
    impl<'ast> Visit<'ast> for Calls<'_> {
        fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
            if call.method == "is_cuda" && call.args.is_empty() {
                let receiver = call.receiver.span().byte_range();
                let twin = format!(" || {}.is_rocm())", &self.text[receiver.clone()]);
                self.edits.insert(receiver.start, "(");
                self.edits.insert(call.span().byte_range().end, twin);
            }
            visit::visit_expr_method_call(self, call);
        }
    }
    let mut calls = Calls { text, edits: Edits::default() };
    calls.visit_file(&parse(text)?);
    Ok(calls.edits.apply(text))
}

/// The file becomes a module: its own root is no longer the crate's.
fn in_own_module(text: &str, suite: &str) -> Result<String, SuiteError> {
    let mut edits = Edits::default();
    let words = words(text);
    for (at, word) in words.iter().enumerate() {
        let of_macro = at > 0 && words[at - 1].text == "$";
        if word.text == "crate" && !of_macro && path_follows(&words[at + 1..]) {
            edits.insert(word.place.end, format!("::{suite}"));
        }
    }
    Ok(edits.apply(text))
}

fn needs(attribute: &Attribute, feature: &str) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let condition: String = list.tokens.to_string().split_whitespace().collect();
    attribute.path().is_ident("cfg") && condition == format!("feature=\"{feature}\"")
}

fn has(attributes: &[Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

fn gated(attributes: &[Attribute], feature: &str) -> bool {
    attributes.iter().any(|attribute| needs(attribute, feature))
}

/// `metal` in all its spellings, for ROCm.
fn metal_to_rocm(text: &str) -> String {
    text.replace("metal", "rocm").replace("Metal", "Rocm")
}

/// A function of the module that is being looked at.
struct Function<'a> {
    item: &'a ItemFn,
    words: Vec<Word>,
    cpu: Vec<Range<usize>>,
    /// Whether it, or a function that it calls, names the CPU device.
    on_cpu: bool,
}

#[derive(Default)]
struct Rewrite<'a> {
    suite: &'a str,
    alone: &'a [&'a str],
    reworded: &'a [Reworded],
    text: &'a str,
    words: Vec<Word>,
    /// Whether the file imports `Cpu` itself.
    bare_cpu: bool,
    edits: Edits,
    tests: Vec<RocmTest>,
    /// The tests of `alone` that would be ROCm tests otherwise.
    left_alone: BTreeSet<String>,
    /// The macros of the file that wrap `test_device!`.
    wrappers: BTreeSet<String>,
}

impl Rewrite<'_> {
    fn words_in(&self, place: &Range<usize>) -> Vec<Word> {
        let inside = |word: &&Word| place.start <= word.place.start && word.place.end <= place.end;
        self.words.iter().filter(inside).cloned().collect()
    }

    fn compile_for_rocm(&mut self, place: Range<usize>) {
        let renamed = metal_to_rocm(&self.text[place.clone()]);
        self.edits.replace(place, renamed);
    }

    fn found(&mut self, kind: Kind, name: String, function: String) {
        match self.tests.iter_mut().find(|test| test.name == name) {
            Some(test) => test.functions.push(function),
            None => self.tests.push(RocmTest { name, kind, functions: vec![function], skipped: None }),
        }
    }

    /// Looks through a module that ends at `end`; `path` leads to it, with a trailing `::`.
    fn module(&mut self, items: &[Item], path: &str, metal: bool, end: usize) -> Result<(), SuiteError> {
        let mut functions = BTreeMap::new();
        for item in items {
            match item {
                Item::Macro(call) => self.macro_item(call, path),
                Item::Mod(module) => self.inner_module(module, path, metal)?,
                Item::Fn(function) if metal || gated(&function.attrs, "metal") => {
                    self.metal_function(function, path, metal)?;
                }
                Item::Fn(function) if gated(&function.attrs, "cuda") => {
                    let test = format!("{path}{}", function.sig.ident);
                    if has(&function.attrs, "test") && !self.leave_alone(&test) {
                        return Err(SuiteError::CudaOnly { suite: self.suite.to_owned(), test });
                    }
                }
                Item::Fn(function) => {
                    let place = function.span().byte_range();
                    if !has(&function.attrs, "test") {
                        // What `test_device!` runs; only a twin is a text of its own.
                        let test = format!("{path}{}", function.sig.ident);
                        for reworded in self.reworded.iter().filter(|reworded| reworded.test == test) {
                            let within = self.place_to_reword(&place, reworded)?;
                            let within = place.start + within.start..place.start + within.end;
                            self.edits.replace(within, reworded.to);
                        }
                    }
                    let words = self.words_in(&place);
                    let cpu = cpu_places(&words, self.bare_cpu);
                    let on_cpu = !cpu.is_empty();
                    functions.insert(
                        function.sig.ident.to_string(),
                        Function { item: function, words, cpu, on_cpu },
                    );
                }
                other if metal => self.compile_for_rocm(other.span().byte_range()),
                _ => {}
            }
        }
        self.twins(functions, path, end)
    }

    fn inner_module(&mut self, module: &syn::ItemMod, path: &str, metal: bool) -> Result<(), SuiteError> {
        let Some((braces, items)) = &module.content else { return Ok(()) };
        let own_gate = module.attrs.iter().find(|attribute| needs(attribute, "metal"));
        let mut name = module.ident.to_string();
        if let Some(gate) = own_gate {
            self.compile_for_rocm(gate.span().byte_range());
            self.compile_for_rocm(module.ident.span().byte_range());
            name = metal_to_rocm(&name);
        }
        let end = braces.span.close().byte_range().start;
        self.module(items, &format!("{path}{name}::"), metal || own_gate.is_some(), end)
    }

    /// `test_device!`, or a macro of the file that holds one.
    fn macro_item(&mut self, call: &syn::ItemMacro, path: &str) {
        if let Some(name) = &call.ident {
            if call.mac.tokens.to_string().contains("test_device") {
                self.wrappers.insert(name.to_string());
            }
            return;
        }
        let Some(name) = call.mac.path.segments.last().map(|segment| segment.ident.to_string()) else {
            return;
        };
        let Some(TokenTree::Ident(function)) = call.mac.tokens.clone().into_iter().next() else { return };
        let test = format!("{path}{function}::rocm");
        if name == "test_device" {
            self.found(Kind::Device, format!("{path}{function}"), test);
        } else if self.wrappers.contains(&name) {
            self.found(Kind::Device, format!("{path}{name}!"), test);
        }
    }

    fn leave_alone(&mut self, test: &str) -> bool {
        let alone = self.alone.contains(&test);
        if alone {
            self.left_alone.insert(test.to_owned());
        }
        alone
    }

    /// A function that exists for Metal only: by itself, or as all of its file or module.
    fn metal_function(&mut self, function: &ItemFn, path: &str, module_too: bool) -> Result<(), SuiteError> {
        let place = function.span().byte_range();
        let name = &function.sig.ident;
        let is_test = has(&function.attrs, "test");
        if is_test && self.leave_alone(&format!("{path}{name}")) {
            if module_too {
                self.edits.insert(place.start, "#[cfg(feature = \"metal\")]\n");
            }
            return Ok(());
        }
        let test = format!("{path}{name}");
        let mut renamed = metal_to_rocm(&self.text[place.clone()]);
        for reworded in self.reworded.iter().filter(|reworded| reworded.test == test) {
            self.place_to_reword(&place, reworded)?;
            renamed = renamed.replacen(reworded.from, reworded.to, 1);
        }
        self.edits.replace(place, renamed);
        if is_test {
            let name = metal_to_rocm(&test);
            self.found(Kind::Metal, name.clone(), name);
        }
        Ok(())
    }

    /// Puts a module with the twins of the tests for the CPU device, and of what they call, at the end.
    fn twins(
        &mut self,
        mut functions: BTreeMap<String, Function<'_>>,
        path: &str,
        end: usize,
    ) -> Result<(), SuiteError> {
        // A function is on the CPU device when one that it calls is: until nothing more is found.
        loop {
            let on_cpu: BTreeSet<String> =
                functions.iter().filter(|(_, f)| f.on_cpu).map(|(name, _)| name.clone()).collect();
            let calls = functions.values_mut().filter(|f| !f.on_cpu && !called(&f.words, &on_cpu).is_empty());
            let mut more = false;
            for function in calls {
                (function.on_cpu, more) = (true, true);
            }
            if !more {
                break;
            }
        }
        let on_cpu: BTreeSet<String> =
            functions.iter().filter(|(_, f)| f.on_cpu).map(|(name, _)| name.clone()).collect();
        let mut wanted = BTreeSet::new();
        let mut in_order: Vec<_> = functions.values().collect();
        in_order.sort_by_key(|function| function.item.span().byte_range().start);
        for function in &in_order {
            let attributes = &function.item.attrs;
            let name = function.item.sig.ident.to_string();
            let test = format!("{path}{name}");
            let counts = function.on_cpu && has(attributes, "test");
            if !counts || self.leave_alone(&test) || has(attributes, "ignore") {
                continue;
            }
            self.found(Kind::Twin, test, format!("{path}on_rocm::{name}"));
            wanted.insert(name);
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let mut ahead: Vec<String> = wanted.iter().cloned().collect();
        while let Some(name) = ahead.pop() {
            for callee in called(&functions[&name].words, &on_cpu) {
                if wanted.insert(callee.clone()) {
                    ahead.push(callee);
                }
            }
        }
        let mut module = String::from("\nmod on_rocm {\n    use super::*;\n");
        for function in in_order.iter().filter(|f| wanted.contains(&f.item.sig.ident.to_string())) {
            let place = function.item.span().byte_range();
            let mut twin = Edits::default();
            for cpu in &function.cpu {
                twin.replace(cpu.start - place.start..cpu.end - place.start, "crate::rocm_device()");
            }
            let test = format!("{path}{}", function.item.sig.ident);
            for reworded in self.reworded.iter().filter(|reworded| reworded.test == test) {
                twin.replace(self.place_to_reword(&place, reworded)?, reworded.to);
            }
            module.push_str(&format!("\n{}\n", twin.apply(&self.text[place])));
        }
        module.push_str("}\n");
        self.edits.insert(end, module);
        Ok(())
    }

    /// Where a test says something else, counted from the start of the one at `place`.
    fn place_to_reword(&self, place: &Range<usize>, reworded: &Reworded) -> Result<Range<usize>, SuiteError> {
        let found: Vec<_> = self.text[place.clone()].match_indices(reworded.from).collect();
        match found[..] {
            [(at, text)] => Ok(at..at + text.len()),
            _ => Err(SuiteError::Reworded {
                suite: self.suite.to_owned(),
                test: reworded.test.to_owned(),
                from: reworded.from.to_owned(),
                found: found.len(),
            }),
        }
    }
}
