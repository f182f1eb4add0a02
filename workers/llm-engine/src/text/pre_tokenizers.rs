//! Pre-tokenizers of byte-pair encodings, by their name in GGUF files.
use anyhow::{Error, Result};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

/// A pre-tokenizer: splits a text into the pieces that are then merged separately.
pub(super) struct PreTokenizer {
    /// Names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Regular expressions, applied one after another. Text between the matches also becomes pieces.
    patterns: &'static [&'static str],
    /// If true, a piece that is itself a token is not merged (`ignore_merges`).
    pub(super) ignore_merges: bool,
    /// If true, a text starts with the BOS token unless the file specifies otherwise.
    pub(super) bos: bool,
    /// If true, the text is normalized to NFC first.
    pub(super) nfc: bool,
    /// If true, tokens are plain text with U+2581 instead of spaces, and not byte-level.
    pub(super) plain_text: bool,
}

impl PreTokenizer {
    /// Returns the pre-tokenizer of a name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        PRE_TOKENIZERS.iter().find(|pre| pre.names.contains(&name))
    }

    /// Returns the steps that split a text.
    pub(super) fn steps(&self) -> Result<Vec<PreTokenizerWrapper>> {
        let split = |pattern: &&str| -> Result<PreTokenizerWrapper> {
            let pattern = SplitPattern::Regex((*pattern).into());
            Ok(Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(Error::msg)?.into())
        };
        self.patterns.iter().map(split).collect()
    }

    const fn new(names: &'static [&'static str], patterns: &'static [&'static str]) -> Self {
        Self { names, patterns, ignore_merges: false, bos: false, nfc: false, plain_text: false }
    }

    const fn ignore_merges(self) -> Self {
        Self { ignore_merges: true, ..self }
    }

    const fn bos(self) -> Self {
        Self { bos: true, ..self }
    }

    const fn nfc(self) -> Self {
        Self { nfc: true, ..self }
    }

    const fn plain_text(self) -> Self {
        Self { plain_text: true, ..self }
    }
}

/// English contractions.
macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// A word with the character before it.
macro_rules! word {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}

/// Line ends with the white space before them, and other white space except the last before a word.
macro_rules! spaces {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// Like `word`, for words that also end between a lowercase and an uppercase letter.
macro_rules! cased_word {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $suffix
        )
    };
}

/// Words of DeepSeek's later models, with one ASCII punctuation mark before them.
macro_rules! deepseek_words {
    () => {
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##
    };
}

const NUMBER: &str = r"\p{N}+";
const DIGIT: &str = r"\p{N}";
const THREE_DIGITS: &str = r"\p{N}{1,3}";
/// Digits in groups of three from the right.
const DIGITS_FROM_THE_RIGHT: &str = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))";
const LINES: &str = r"[^\n]+|\n+";
const CHINESE_AND_KANA: &str = r"[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+";
const CHINESE_AND_KOREAN: &str = r"[\u{0800}-\u{9FA5}\u{AC00}-\u{D7FF}]+";
/// Pieces of BLOOM, which may not contain punctuation.
const BLOOM: &str = r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{0964}\u{06D4}\u{060C})]+";

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-4's pattern: numbers are split into groups of three digits.
const GPT4: &str =
    concat!(contractions!(), "|", word!(), r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
/// GPT-4o's pattern: words are also split by case, and contractions are part of the word.
const GPT4O: &str = concat!(
    cased_word!(concat!(contractions!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    spaces!()
);
/// Like [`GPT4`], with single digits.
const QWEN2: &str = concat!(contractions!(), "|", word!(), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!());
/// Like [`QWEN2`], with combining marks as letters.
const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    spaces!()
);
const TEKKEN: &str = concat!(cased_word!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|", spaces!());
const DEEPSEEK3: &str = concat!(deepseek_words!(), r"| ?[\p{P}\p{S}]+[\r\n]*|", spaces!());
/// Words of cased letters in DeepSeek's first models, which have a fixed list of them.
const DEEPSEEK_WORD: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+";
const KIMI: &str = concat!(
    r"\p{Han}+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    contractions!(),
    r"?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    contractions!(),
    r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    spaces!()
);

const PRE_TOKENIZERS: [PreTokenizer; 35] = [
    PreTokenizer::new(
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"],
        &[GPT4],
    )
    .ignore_merges()
    .bos(),
    PreTokenizer::new(&["glm4", "glm5"], &[GPT4]).ignore_merges(),
    PreTokenizer::new(&["smaug-bpe", "dbrx", "chatglm-bpe"], &[GPT4]),
    PreTokenizer::new(
        &["jais-2"],
        &[concat!(
            contractions!(),
            "|",
            word!(),
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)",
            r"|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s"
        )],
    ),
    PreTokenizer::new(
        &["minicpm5"],
        &[
            THREE_DIGITS,
            concat!(contractions!(), "|", word!(), r"|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!()),
        ],
    )
    .ignore_merges(),
    PreTokenizer::new(&["qwen2", "deepseek-r1-qwen", "f2llmv2"], &[QWEN2]).nfc(),
    PreTokenizer::new(&["qwen35"], &[QWEN35]).nfc(),
    PreTokenizer::new(&["stablelm2", "kormo", "megrez", "hunyuan", "grok-2", "solar-open"], &[QWEN2]),
    PreTokenizer::new(&["laguna"], &[LINES, QWEN2]),
    PreTokenizer::new(
        &["ufakzeka"],
        &[concat!(word!(), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", spaces!())],
    ),
    PreTokenizer::new(
        &["seed-coder"],
        &[concat!(contractions!(), "|", word!(), r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|", spaces!())],
    ),
    PreTokenizer::new(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[concat!(
            r"'(?i:[sdmt]|ll|ve|re)|",
            word!(),
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
    ),
    PreTokenizer::new(
        &["exaone-moe"],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
    ),
    PreTokenizer::new(&["tekken"], &[TEKKEN]).ignore_merges().bos(),
    PreTokenizer::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    PreTokenizer::new(&["granite-embed-multi-97m"], &[GPT4O]).ignore_merges(),
    PreTokenizer::new(&["tiny_aya", "cohere2moe"], &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    PreTokenizer::new(&["kimi-k2"], &[KIMI]),
    PreTokenizer::new(
        &["youtu"],
        &[
            concat!(
                r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+",
                r"|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+",
                r"|[\u{3105}-\u{312F}]+|[\u{4E00}-\u{9FA5}\u{3040}-\u{30FF}]+"
            ),
            concat!(
                cased_word!(concat!(contractions!(), "?")),
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
                spaces!()
            ),
        ],
    )
    .ignore_merges(),
    PreTokenizer::new(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_WORD, DEEPSEEK_PUNCTUATION, r"\s+$", CHINESE_AND_KOREAN, NUMBER],
    ),
    PreTokenizer::new(
        &["deepseek-coder"],
        &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN, DIGIT],
    ),
    PreTokenizer::new(
        &["deepseek-v3", "hunyuan-dense", "hy_v4", "joyai-llm"],
        &[THREE_DIGITS, CHINESE_AND_KANA, DEEPSEEK3],
    ),
    PreTokenizer::new(
        &["spark2_5"],
        &[
            THREE_DIGITS,
            CHINESE_AND_KANA,
            concat!(deepseek_words!(), r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"),
            DIGIT,
        ],
    ),
    PreTokenizer::new(
        &["afmoe"],
        &[
            DIGITS_FROM_THE_RIGHT,
            concat!(
                r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{30FF}\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}",
                r"\u{0E40}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}",
                r"\u{1100}-\u{11FF}]+"
            ),
            DEEPSEEK3,
        ],
    ),
    PreTokenizer::new(&["falcon"], &[r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"]),
    PreTokenizer::new(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "minerva", "mellum2"],
        &[DIGIT, GPT2],
    ),
    PreTokenizer::new(
        &["gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "gigachat", "exaone4"],
        &[GPT2],
    ),
    PreTokenizer::new(&["a.x-4.0", "mellum", "modern-bert", "roberta-bpe"], &[GPT2]),
    PreTokenizer::new(
        &["jina-en", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"],
        &[GPT2],
    ),
    PreTokenizer::new(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    PreTokenizer::new(&["viking"], &[BLOOM, DIGIT]),
    PreTokenizer::new(&["superbpe"], &[NUMBER, r"(?=(\d{3})+(?!\d))"]),
    PreTokenizer::new(
        &["chameleon"],
        &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .bos(),
    PreTokenizer::new(&["gemma4", "granite-embed-multi-311m", "sarvam-moe"], &[LINES]).plain_text(),
    PreTokenizer::new(&["default"], &[r"[\p{P}$+<=>^~|]+", GPT2, NUMBER, "[0-9][0-9][0-9]"]),
];

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    const TEXT: &str = "I'LL pay 12345 $5, don't\n\n  x=3.5;\u{C4}bC";
    const SCRIPTS: &str = " \u{4E2D}\u{6587}\u{304B}\u{D55C} a\u{301}b\u{3002}6\n";

    fn splits(name: &str, text: &str) -> String {
        let mut pieces = PreTokenizedString::from(text);
        Sequence::new(PreTokenizer::named(name).unwrap().steps().unwrap()).pre_tokenize(&mut pieces).unwrap();
        let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.iter().map(|(piece, ..)| *piece).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn texts_are_split_by_name() {
        let gpt2 = "I|'|LL| pay| 12345| $|5|,| don|'t|\n\n | x|=|3|.|5|;|\u{C4}bC";
        let gpt2_scripts = " \u{4E2D}\u{6587}\u{304B}\u{D55C}| a|\u{301}|b|\u{3002}|6|\n";
        let gpt4 = "I|'LL| pay| |123|45| $|5|,| don|'t|\n\n| | x|=|3|.|5|;\u{C4}bC";
        let gpt4_scripts = " \u{4E2D}\u{6587}\u{304B}\u{D55C}| a|\u{301}b|\u{3002}|6|\n";
        let cased_scripts = " \u{4E2D}\u{6587}\u{304B}\u{D55C}| a\u{301}b|\u{3002}|6|\n";
        let single = gpt4.replace("123|45", "1|2|3|4|5");
        let gpt4o = "I'LL| pay| |123|45| $|5|,| don't|\n\n| | x|=|3|.|5|;\u{C4}b|C";
        let deepseek3 = gpt4.replace(";\u{C4}", ";|\u{C4}");
        let kana = " |\u{4E2D}\u{6587}\u{304B}|\u{D55C}| a\u{301}b|\u{3002}|6|\n";
        let chinese = " |\u{4E2D}\u{6587}\u{304B}\u{D55C}| a|\u{301}|b|\u{3002}|6|\n";
        let deepseek = "I|'|LL| pay| |12345| $|5|,| don|'|t|\n|\n| | x|=|3|.|5|;|\u{C4}|bC";
        for (name, text, scripts) in [
            ("llama-bpe", gpt4, gpt4_scripts),
            ("jais-2", gpt4, gpt4_scripts),
            ("minicpm5", gpt4, gpt4_scripts),
            ("qwen2", &single, gpt4_scripts),
            ("qwen35", &single, cased_scripts),
            ("laguna", &single, gpt4_scripts),
            ("seed-coder", &single, gpt4_scripts),
            ("bailingmoe", &single, gpt4_scripts),
            ("tekken", &single.replace("\u{C4}bC", "\u{C4}b|C"), cased_scripts),
            ("gpt-4o", gpt4o, cased_scripts),
            ("tiny_aya", &gpt4o.replace("123|45", "12|345"), cased_scripts),
            ("kimi-k2", gpt4o, " |\u{4E2D}\u{6587}|\u{304B}\u{D55C}| a\u{301}b|\u{3002}|6|\n"),
            ("youtu", &gpt4o.replace("123|45", "1|2|3|4|5"), kana),
            ("deepseek-v3", &deepseek3, kana),
            ("spark2_5", &deepseek3.replace("123|45", "1|2|3|4|5").replace("\n\n", "\n|\n"), kana),
            ("afmoe", &deepseek3.replace("123|45", "12|345"), &cased_scripts.replacen(' ', " |", 1)),
            ("deepseek-llm", deepseek, chinese),
            ("deepseek-coder", &deepseek.replace("12345", "1|2|3|4|5").replace("\u{C4}|", "\u{C4}"), chinese),
            ("gpt-2", gpt2, gpt2_scripts),
            ("smollm", &gpt2.replace(" 12345", " |1|2|3|4|5"), gpt2_scripts),
            (
                "superbpe",
                "I'LL pay |12|345| $|5|, don't\n\n  x=|3|.|5|;\u{C4}bC",
                &SCRIPTS.replace('6', "|6|"),
            ),
            ("gemma4", "I'LL pay 12345 $5, don't|\n\n|  x=3.5;\u{C4}bC", &SCRIPTS.replace('\n', "|\n")),
        ] {
            assert_eq!(splits(name, TEXT), *text, "{name}");
            assert_eq!(splits(name, SCRIPTS), *scripts, "{name}");
        }
        assert_eq!(splits("default", "a$b12345'tis"), "a|$|b|123|45|'|tis");
        assert_eq!(splits("falcon", "a$b12345'tis"), "a|$|b|123|45|'|tis");
        assert_eq!(splits("viking", "it's 12, (so)"), "it's| |1|2|, (|so|)");
        assert_eq!(splits("exaone-moe", "so it is"), "so it is");
        assert_eq!(splits("chameleon", "a  b\tIMGIMGABZ"), "a|  |b|\t|IMGIMGABZ");
    }

    #[test]
    fn each_name_has_one_pre_tokenizer() {
        let mut names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|pre| pre.names).collect();
        for name in &names {
            splits(name, TEXT);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), count), (93, 93));
    }
}
