//! Translates CUDA kernel sources for our compatibility headers.
//!
//! The headers in `hip-kernels/include` define CUDA's names for AMD GPUs. Only the `#include` directives, the names in
//! [`NAMES`], and the parameters for dims and strides change in the sources. Comments and literals are left unchanged.

use crate::BuildError;
use crate::lexer::{Kind, Token, tokens};

/// Headers of CUDA and of the C and C++ libraries that sources may include. Their directives are removed, because
/// `candle_hip.h`, which is included before the first line, provides everything that the kernels use of them. Quoted `.cuh`
/// headers are hipified like the kernels and kept. Any other header is an error.
pub const PROVIDED_HEADERS: &[&str] =
    &["cuda.h", "cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h", "cuda/std/limits", "cmath", "math.h", "stdint.h"];

/// CUDA names and their replacements.
pub const NAMES: &[(&str, &str)] = &[
    // The compute capability, which clang must not define for AMD GPUs. Our headers define it under another name.
    ("__CUDA_ARCH__", "CANDLE_CUDA_ARCH"),
];

/// The by-value struct that replaces a kernel's `const size_t *` parameter. It converts to `const size_t *`, so that kernel
/// bodies need no change.
pub const LAYOUT_TYPE: &str = "CandleLayout";

/// Number of changes of each kind in a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Removed `#include` directives.
    pub headers: usize,
    /// Replaced names of [`NAMES`].
    pub names: usize,
    /// Kernel parameters converted to by-value layouts.
    pub layouts: usize,
}

/// Translates one source. `file` is the name used in error messages.
///
/// # Errors
/// [`BuildError::Hipify`] for an unknown header, or for a kernel parameter that points to `size_t` in
/// another form than `const size_t *NAME`.
pub fn hipify(file: &str, source: &str) -> Result<(String, Changes), BuildError> {
    let tokens = tokens(source);
    let mut replaced: Vec<Option<String>> = vec![None; tokens.len()];
    let mut changes = Changes::default();
    let error = |token: &Token<'_>, message: String| BuildError::Hipify {
        file: file.to_owned(),
        line: token.line,
        message,
    };

    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Header => {
                let name = &token.text[1..token.text.len() - 1];
                if PROVIDED_HEADERS.contains(&name) {
                    let directive = tokens[..at].iter().rposition(|t| t.text == "#").unwrap_or(at);
                    replaced[directive..=at].fill(Some(String::new()));
                    changes.headers += 1;
                } else if !name.ends_with(".cuh") {
                    return Err(error(token, format!("no rule for #include {}", token.text)));
                }
            }
            Kind::Identifier => {
                if let Some((_, ours)) = NAMES.iter().find(|(cuda, _)| *cuda == token.text) {
                    replaced[at] = Some((*ours).to_owned());
                    changes.names += 1;
                }
            }
            _ => {}
        }
    }

    for parameters in kernel_parameter_lists(&tokens) {
        for parameter in parameters {
            let significant: Vec<usize> =
                parameter.into_iter().filter(|&at| tokens[at].is_significant()).collect();
            let texts: Vec<&str> = significant.iter().map(|&at| tokens[at].text).collect();
            match texts[..] {
                ["const", "size_t", "*", _] => {
                    replaced[significant[1]] = Some(LAYOUT_TYPE.to_owned());
                    replaced[significant[2]] = Some(String::new());
                    changes.layouts += 1;
                }
                _ if texts.windows(2).any(|pair| pair == ["size_t", "*"]) => {
                    return Err(error(
                        &tokens[significant[0]],
                        format!(
                            "the kernel parameter `{}` is not supported: a pointer to size_t must be `const size_t *NAME`",
                            texts.join(" ")
                        ),
                    ));
                }
                _ => {}
            }
        }
    }

    let text = tokens
        .iter()
        .zip(&replaced)
        .map(|(token, replacement)| replacement.as_deref().unwrap_or(token.text))
        .collect();
    Ok((text, changes))
}

/// Returns the parameters of every `__global__ ... NAME(`, each as a range of tokens.
fn kernel_parameter_lists(tokens: &[Token<'_>]) -> Vec<Vec<std::ops::Range<usize>>> {
    let kernels = tokens.iter().enumerate().filter(|(_, token)| token.text == "__global__");
    kernels.filter_map(|(at, _)| Some(split_at_commas(tokens, parameter_list(tokens, at)?))).collect()
}

/// Attributes with parentheses that may precede a kernel's name.
const ATTRIBUTES: &[&str] = &["__launch_bounds__", "__attribute__"];

/// Finds the opening parenthesis after the kernel's name: the first one that follows an identifier, except attributes.
fn parameter_list(tokens: &[Token<'_>], global: usize) -> Option<usize> {
    let mut depth = 0;
    let mut name: Option<&str> = None;
    for (at, token) in tokens.iter().enumerate().skip(global).filter(|(_, token)| token.is_significant()) {
        match token.text {
            "(" if depth == 0 && name.is_some_and(|name| !ATTRIBUTES.contains(&name)) => return Some(at),
            "(" => depth += 1,
            ")" => depth -= 1,
            "{" | ";" => return None,
            _ => {}
        }
        name = (token.kind == Kind::Identifier).then_some(token.text);
    }
    None
}

/// Splits the tokens within the parenthesis at `open` at the commas of its level.
fn split_at_commas(tokens: &[Token<'_>], open: usize) -> Vec<std::ops::Range<usize>> {
    let mut depth = 0;
    let mut start = open + 1;
    let mut parts = Vec::new();
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && token.text == ",") {
            parts.push(start..at);
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(source: &str) -> String {
        hipify("test.cu", source).unwrap().0
    }

    #[test]
    fn comments_and_strings_are_unchanged() {
        let source = "// __CUDA_ARCH__\n/* __CUDA_ARCH__ */ const char *s = \"__CUDA_ARCH__\";";
        assert_eq!(translated(source), source);
    }

    #[test]
    fn only_whole_names_are_replaced() {
        assert_eq!(
            translated("#if __CUDA_ARCH__ >= 800 && MY__CUDA_ARCH__"),
            "#if CANDLE_CUDA_ARCH >= 800 && MY__CUDA_ARCH__"
        );
    }

    #[test]
    fn toolkit_headers_are_removed_and_ours_kept() {
        let source = "#include<cmath>\n# include <cuda_fp16.h> // f16\n#include \"cuda_utils.cuh\"\n";
        assert_eq!(translated(source), "\n // f16\n#include \"cuda_utils.cuh\"\n");
    }

    #[test]
    fn an_unknown_header_is_an_error_with_its_line() {
        let error = hipify("a.cu", "\n#include <mma.h>").unwrap_err().to_string();
        assert_eq!(error, "a.cu:2: no rule for #include <mma.h>");
    }

    #[test]
    fn dims_and_strides_are_passed_by_value_in_kernels_only() {
        let source = "__device__ void f(const size_t *info);\n#define K(F) \\\nextern \"C\" __global__ void F( \\\n\
            const size_t n, \\\n const size_t *info, /* a, b */ const T *x) { const size_t *d = info; }";
        assert_eq!(
            translated(source),
            "__device__ void f(const size_t *info);\n#define K(F) \\\nextern \"C\" __global__ void F( \\\n\
            const size_t n, \\\n const CandleLayout info, /* a, b */ const T *x) { const size_t *d = info; }"
        );
    }

    #[test]
    fn launch_bounds_are_not_a_parameter_list() {
        assert_eq!(
            translated("__global__ void __launch_bounds__(N, 2) k(const size_t *a, int b)"),
            "__global__ void __launch_bounds__(N, 2) k(const CandleLayout a, int b)"
        );
        assert_eq!(
            translated("__launch_bounds__(N) __global__ void k(const size_t * a)"),
            "__launch_bounds__(N) __global__ void k(const CandleLayout  a)"
        );
    }

    #[test]
    fn a_layout_in_another_form_is_an_error() {
        let error = hipify("a.cu", "__global__ void k(size_t *out)").unwrap_err().to_string();
        assert!(error.contains("`size_t * out`"), "{error}");
    }
}
