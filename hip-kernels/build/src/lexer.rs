//! Splits C and CUDA source into tokens, which concatenate to the source, byte by byte.

/// Kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword.
    Identifier,
    /// A preprocessing number: `0x1p-24f`, `1e5`, `100u`.
    Number,
    /// A string or character literal, with its quotes.
    Literal,
    /// `<name>` or `"name"` after `#include`.
    Header,
    /// One character of punctuation.
    Punctuation,
    /// Blanks, line ends, and line continuations.
    Space,
    /// `// ...` or `/* ... */`.
    Comment,
}

/// A piece of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    /// Kind of the token.
    pub kind: Kind,
    /// Text of the token.
    pub text: &'a str,
    /// Line on which it starts, from 1.
    pub line: usize,
}

impl Token<'_> {
    /// Returns true unless it is white space or a comment.
    pub fn is_significant(&self) -> bool {
        !matches!(self.kind, Kind::Space | Kind::Comment)
    }
}

/// Splits a source into tokens. Unterminated comments and literals extend to the end of the source or line.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = if follows_include(&tokens) && (first == '<' || first == '"') {
            (Kind::Header, header_length(rest))
        } else {
            next(rest, first)
        };
        let (text, after) = rest.split_at(length);
        tokens.push(Token { kind, text, line });
        line += text.bytes().filter(|&byte| byte == b'\n').count();
        rest = after;
    }
    tokens
}

fn next(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        (Kind::Comment, line_comment_length(rest))
    } else if let Some(comment) = rest.strip_prefix("/*") {
        (Kind::Comment, comment.find("*/").map_or(rest.len(), |end| end + 4))
    } else if first.is_whitespace() || continues_line(rest) {
        (Kind::Space, space_length(rest))
    } else if let Some(length) = literal_length(rest) {
        (Kind::Literal, length)
    } else if is_identifier_start(first) {
        (Kind::Identifier, rest.find(|c| !is_identifier_part(c)).unwrap_or(rest.len()))
    } else if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
    {
        (Kind::Number, number_length(rest))
    } else {
        (Kind::Punctuation, first.len_utf8())
    }
}

fn is_identifier_start(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

fn is_identifier_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

fn continues_line(rest: &str) -> bool {
    rest.starts_with("\\\n") || rest.starts_with("\\\r\n")
}

fn space_length(rest: &str) -> usize {
    let mut length = 0;
    while let Some(c) = rest[length..].chars().next() {
        if !c.is_whitespace() && !continues_line(&rest[length..]) {
            break;
        }
        length += c.len_utf8();
    }
    length
}

/// Returns the length of a line comment, including continued lines.
fn line_comment_length(rest: &str) -> usize {
    let mut from = 0;
    while let Some(end) = rest[from..].find('\n').map(|end| from + end) {
        if !rest[..end].trim_end_matches('\r').ends_with('\\') {
            return end;
        }
        from = end + 1;
    }
    rest.len()
}

/// Returns the length of a string, character or raw string with its prefix (`L`, `u8`, `R` ...), or `None`.
fn literal_length(rest: &str) -> Option<usize> {
    let prefix = rest.find(['"', '\'']).filter(|&at| {
        matches!(&rest[..at], "" | "L" | "u" | "U" | "u8" | "R" | "LR" | "uR" | "UR" | "u8R")
    })?;
    let body = &rest[prefix..];
    let quote = body.chars().next()?;
    if quote == '"' && rest[..prefix].ends_with('R') {
        let open = body.find('(')?;
        let close = format!("){}\"", &body[1..open]);
        return Some(body[open..].find(&close).map_or(rest.len(), |at| prefix + open + at + close.len()));
    }
    let mut escaped = false;
    for (at, c) in body.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '\n' => return Some(prefix + at),
            _ if c == quote => return Some(prefix + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

/// Returns the length of a C preprocessing number: digits, letters, dots, and signs after an exponent letter.
fn number_length(rest: &str) -> usize {
    let mut previous = ' ';
    for (at, c) in rest.char_indices() {
        let signed_exponent = matches!(c, '+' | '-') && matches!(previous, 'e' | 'E' | 'p' | 'P');
        let separator = c == '\'' && rest[at + 1..].starts_with(|c: char| c.is_ascii_alphanumeric());
        if !(is_identifier_part(c) || c == '.' || signed_exponent || separator) {
            return at;
        }
        previous = c;
    }
    rest.len()
}

/// Returns true if the last significant tokens are `# include` on the current line.
fn follows_include(tokens: &[Token<'_>]) -> bool {
    let mut back = tokens.iter().rev();
    let mut previous = || back.by_ref().find(|token| token.kind != Kind::Comment && !is_blank(token));
    previous().is_some_and(|token| token.text == "include")
        && previous().is_some_and(|token| token.text == "#")
}

/// Returns true for white space within a line.
fn is_blank(token: &Token<'_>) -> bool {
    token.kind == Kind::Space && !token.text.replace("\\\n", "").contains('\n')
}

fn header_length(rest: &str) -> usize {
    let close = if rest.starts_with('<') { '>' } else { '"' };
    let line = rest.find('\n').unwrap_or(rest.len());
    rest[1..line].find(close).map_or(line, |at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn significant(source: &str) -> Vec<(Kind, &str)> {
        tokens(source).iter().filter(|t| t.is_significant()).map(|t| (t.kind, t.text)).collect()
    }

    #[test]
    fn tokens_join_to_the_source() {
        let source =
            "#define A(x) \\\n  x##_f \"a\\\"b\" // c \\\n d\n/* e\n*/ 'q' 0x1p-24f 1.e+5 R\"z(\")z\" \u{e4}";
        let joined: String = tokens(source).iter().map(|token| token.text).collect();
        assert_eq!(joined, source);
    }

    #[test]
    fn comments_and_strings_are_single_tokens() {
        assert_eq!(
            tokens("a/*b*/\"//c\"//d").iter().map(|t| (t.kind, t.text)).collect::<Vec<_>>(),
            [
                (Kind::Identifier, "a"),
                (Kind::Comment, "/*b*/"),
                (Kind::Literal, "\"//c\""),
                (Kind::Comment, "//d"),
            ]
        );
    }

    #[test]
    fn a_continued_comment_takes_the_next_line() {
        assert_eq!(significant("// a \\\n b\nc"), [(Kind::Identifier, "c")]);
    }

    #[test]
    fn numbers_keep_signed_exponents_and_suffixes() {
        assert_eq!(
            significant("1e-5f+0x1p-24 .5"),
            [
                (Kind::Number, "1e-5f"),
                (Kind::Punctuation, "+"),
                (Kind::Number, "0x1p-24"),
                (Kind::Number, ".5"),
            ]
        );
    }

    #[test]
    fn headers_are_recognised_only_after_include() {
        assert_eq!(
            significant("#include<a/b.h>\na < b > c")[2..],
            [
                (Kind::Header, "<a/b.h>"),
                (Kind::Identifier, "a"),
                (Kind::Punctuation, "<"),
                (Kind::Identifier, "b"),
                (Kind::Punctuation, ">"),
                (Kind::Identifier, "c"),
            ]
        );
    }

    #[test]
    fn lines_are_counted() {
        let lines: Vec<_> =
            tokens("a\n\\\nb /*\n*/ c").iter().filter(|t| t.is_significant()).map(|t| t.line).collect();
        assert_eq!(lines, [1, 3, 4]);
    }
}
