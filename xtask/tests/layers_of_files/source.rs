//! Parses a module tree and resolves which items of other files each file names.
use proc_macro2::{TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Path of a module from the crate's root.
type Module = Vec<String>;

/// Use of a module, or of an item in it.
pub struct Use {
    /// Indices of the using and the used file.
    pub from: usize,
    pub to: usize,
    /// Module that the path resolves to.
    pub module: Module,
    /// Name of the item in the module, `*` for a glob; `None` if the path names the module itself.
    pub item: Option<String>,
    /// True if the use is in test code.
    pub is_test: bool,
    pub line: usize,
    /// Path as written in the source.
    pub path: String,
}

#[derive(Default)]
pub struct Source {
    /// File names for messages.
    pub files: Vec<String>,
    pub modules: Vec<Module>,
    pub uses: Vec<Use>,
    scopes: BTreeMap<Module, Scope>,
    paths: Vec<WrittenPath>,
}

#[derive(Default)]
struct Scope {
    file: usize,
    /// Private imports and re-exports: the path of each name.
    imports: BTreeMap<String, Vec<String>>,
    reexports: BTreeMap<String, Vec<String>>,
    /// Paths that are re-exported with a glob.
    glob_reexports: Vec<Vec<String>>,
    items: Vec<String>,
}

struct WrittenPath {
    module: Module,
    path: Vec<String>,
    is_import: bool,
    is_test: bool,
    line: usize,
}

/// Returns the text of a file by its path; `None` if the file does not exist.
type Texts<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Source {
    /// Reads the files that `root` declares, directly or indirectly. `module` is empty if `root` is a crate's
    /// root. Otherwise it is the name of the module, whose re-exports the crate's root, which is not read,
    /// re-exports again.
    pub fn read(root: &Path, module: &str) -> Self {
        let folder = root.parent().expect("a file lies in a folder");
        let name = root.file_name().expect("a file").to_string_lossy();
        Self::of(&name, module, &|path| std::fs::read_to_string(folder.join(path)).ok())
    }

    /// Like [`Self::read`], for texts instead of files.
    pub fn of(root: &str, module: &str, texts: Texts) -> Self {
        let mut source = Self::default();
        let top: Module = if module.is_empty() { Vec::new() } else { vec![module.to_string()] };
        if let Some(text) = texts(root) {
            source.add_file(root, &top, Path::new(""), &text, texts, false);
        }
        if !module.is_empty() {
            let names = source.scopes[&top].reexports.keys().cloned();
            let mut reexports: BTreeMap<String, Vec<String>> = names
                .map(|name| (name.clone(), vec!["crate".to_string(), module.to_string(), name]))
                .collect();
            reexports.insert("rocm".to_string(), vec!["crate".to_string(), module.to_string()]);
            source.scopes.insert(Vec::new(), Scope { reexports, ..Scope::default() });
        }
        source.uses = source.paths.iter().filter_map(|written| source.resolve_written(written)).collect();
        source
    }

    /// Parses a file whose child modules are in `folder`.
    fn add_file(
        &mut self,
        path: &str,
        module: &Module,
        folder: &Path,
        text: &str,
        texts: Texts,
        is_test: bool,
    ) {
        let file = self.files.len();
        self.files.push(path.to_string());
        self.modules.push(module.clone());
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        self.add_items(file, module, folder, &parsed.items, texts, is_test);
    }

    fn add_items(
        &mut self,
        file: usize,
        module: &Module,
        folder: &Path,
        items: &[Item],
        texts: Texts,
        is_test: bool,
    ) {
        self.scopes.entry(module.clone()).or_default().file = file;
        for item in items {
            if let Item::Mod(child) = item {
                self.add_module(file, module, folder, child, texts, is_test);
                continue;
            }
            let mut reader = Reader {
                scope: Scope::default(),
                module: module.clone(),
                is_test: is_test || is_test_only(attributes(item)),
                paths: Vec::new(),
            };
            reader.visit_item(item);
            self.paths.append(&mut reader.paths);
            let scope = self.scopes.entry(module.clone()).or_default();
            scope.imports.append(&mut reader.scope.imports);
            scope.reexports.append(&mut reader.scope.reexports);
            scope.glob_reexports.append(&mut reader.scope.glob_reexports);
            scope.items.extend(name_of(item));
        }
    }

    fn add_module(
        &mut self,
        file: usize,
        parent: &Module,
        folder: &Path,
        item: &ItemMod,
        texts: Texts,
        is_test: bool,
    ) {
        let name = item.ident.to_string();
        let module: Module = parent.iter().cloned().chain([name.clone()]).collect();
        let is_test = is_test || is_test_only(&item.attrs);
        if let Some((_, items)) = &item.content {
            return self.add_items(file, &module, &folder.join(&name), items, texts, is_test);
        }
        let own = Path::new(&self.files[file]).parent().unwrap_or(Path::new("")).to_path_buf();
        let (paths, inside) = match path_attribute(&item.attrs) {
            Some(path) => (vec![normalize(&own.join(path))], None),
            None => (
                vec![folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")],
                Some(folder.join(&name)),
            ),
        };
        for path in paths {
            let path = path.to_string_lossy();
            if let Some(text) = texts(&path) {
                let parent = Path::new(&*path).parent().unwrap_or(Path::new("")).to_path_buf();
                return self.add_file(&path, &module, &inside.unwrap_or(parent), &text, texts, is_test);
            }
        }
    }

    /// Resolves a path in a module to a use.
    fn resolve_written(&self, written: &WrittenPath) -> Option<Use> {
        let from = self.scopes[&written.module].file;
        let (module, item) = self.resolve(&written.module, &written.path, 0)?;
        let to = self.scopes[&module].file;
        // A single imported name is a use already counted at its import.
        let is_alone = !written.is_import && written.path.len() == 1;
        let is_imported = self.scopes[&written.module].imports.contains_key(&written.path[0]);
        if is_alone && (is_imported || from == to) {
            return None;
        }
        let (is_test, line, path) = (written.is_test, written.line, written.path.join("::"));
        Some(Use { from, to, module, item, is_test, line, path })
    }

    /// Returns the module that defines what a path names, and the item's name; `None` if it is outside the
    /// tree.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<(Module, Option<String>)> {
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let child = |module: &Module, name: &String| -> Module {
            module.iter().cloned().chain([name.clone()]).collect()
        };
        let join = |path: &[String], rest: &[String]| [path, rest].concat();
        let scope = &self.scopes[module];
        let mut here = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ if self.scopes.contains_key(&child(module, first)) => child(module, first),
            _ if scope.items.contains(first) => return Some((module.clone(), Some(first.clone()))),
            _ => {
                let path = scope.imports.get(first).or_else(|| scope.reexports.get(first))?;
                // `use rand;` names a crate.
                return if path == std::slice::from_ref(first) {
                    None
                } else {
                    self.resolve(module, &join(path, rest), depth + 1)
                };
            }
        };
        let mut rest = rest;
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                here.pop()?;
            } else if name == "self" {
            } else if self.scopes.contains_key(&child(&here, name)) {
                here = child(&here, name);
            } else {
                let scope = self.scopes.get(&here)?;
                if let Some(path) = scope.reexports.get(name).filter(|_| !scope.items.contains(name)) {
                    return self.resolve(&here, &join(path, after), depth + 1);
                }
                for path in scope.glob_reexports.iter().filter(|_| !scope.items.contains(name)) {
                    let found = self.resolve(&here, &join(path, std::slice::from_ref(name)), depth + 1);
                    if let Some((module, Some(item))) = found
                        && self.scopes[&module].items.contains(&item)
                    {
                        return Some((module, Some(item)));
                    }
                }
                // An empty crate root is not part of this tree.
                let is_known = !here.is_empty() || !scope.items.is_empty();
                return is_known.then(|| (here.clone(), Some(name.clone())));
            }
            rest = after;
        }
        self.scopes.contains_key(&here).then_some((here, None))
    }
}

/// Collects the names and paths of one item.
struct Reader {
    scope: Scope,
    module: Module,
    is_test: bool,
    paths: Vec<WrittenPath>,
}

impl Reader {
    fn add(&mut self, path: Vec<String>, is_import: bool, line: usize) {
        let (module, is_test) = (self.module.clone(), self.is_test);
        self.paths.push(WrittenPath { module, path, is_import, is_test, line });
    }

    fn tree(&mut self, before: &[String], tree: &UseTree, is_reexport: bool) {
        let (name, alias) = match tree {
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.tree(before, item, is_reexport));
            }
            UseTree::Path(path) => {
                let path_before = [before, &[path.ident.to_string()]].concat();
                return self.tree(&path_before, &path.tree, is_reexport);
            }
            UseTree::Glob(_) => ("*".to_string(), String::new()),
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
        };
        let (path, alias) = match name.as_str() {
            "self" => (before.to_vec(), before.last().cloned().unwrap_or_default()),
            _ => ([before, std::slice::from_ref(&name)].concat(), alias),
        };
        match (is_reexport, name.as_str()) {
            (true, "*") => self.scope.glob_reexports.push(before.to_vec()),
            (true, _) => drop(self.scope.reexports.insert(alias, path)),
            (false, _) => {
                self.add(path.clone(), true, tree.span().start().line);
                if name != "*" {
                    self.scope.imports.insert(alias, path);
                }
            }
        }
    }

    /// Collects paths of two or more names in the tokens of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut line = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 || path.is_empty() {
                        self.end(&mut path, line);
                    }
                    line = ident.span().start().line;
                    path.push(ident.to_string());
                    colons = 0;
                }
                other => {
                    self.end(&mut path, line);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.end(&mut path, line);
    }

    fn end(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.add(path, false, line);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.tree(&[], &item.tree, !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(names, false, path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.tokens(mac.tokens.clone());
    }

    // Attributes name macros of other crates, and the path in `pub(in ...)` is not a use.
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Const(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Fn(item) => item.sig.ident.to_string(),
        Item::Const(item) => item.ident.to_string(),
        Item::Static(item) => item.ident.to_string(),
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Union(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Macro(item) => item.ident.as_ref()?.to_string(),
        _ => return None,
    })
}

/// Returns true if `#[cfg(test)]` or `#[cfg(all(test, ...))]` is among the attributes.
fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let text = list.tokens.to_string().replace(' ', "");
        text == "test" || text.starts_with("all(test,")
    })
}

/// Returns the file that `#[path = "..."]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find(|attribute| attribute.path().is_ident("path")).and_then(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value else { return None };
        Some(path.value())
    })
}

/// Removes `x/..` from a path.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if normal.file_name().is_some() => drop(normal.pop()),
            component => normal.push(component),
        }
    }
    normal
}
