//! Text chunks of PNG files.
use std::collections::BTreeMap;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// End of the first chunk, which has the size of the image.
const HEADER_END: usize = SIGNATURE.len() + 4 + 4 + 13 + 4;

/// Inserts a text chunk after the header of a PNG file.
pub fn insert(file: &mut Vec<u8>, keyword: &str, text: &str) {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    let (kind, content) = match latin {
        Some(latin) => (b"tEXt", latin),
        // Not compressed, without language.
        None => (b"iTXt", [&[0, 0, 0, 0], text.as_bytes()].concat()),
    };
    let data = [&kind[..], keyword.as_bytes(), &[0], &content].concat();
    let mut chunk = (data.len() as u32 - 4).to_be_bytes().to_vec();
    chunk.extend(&data);
    chunk.extend(crc32fast::hash(&data).to_be_bytes());
    let at = HEADER_END.min(file.len());
    file.splice(at..at, chunk);
}

/// Returns the texts of a PNG file that are not compressed, by keyword.
pub fn read(file: &[u8]) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    let mut rest = file.strip_prefix(SIGNATURE).unwrap_or_default();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((kind, behind)) = behind.split_first_chunk::<4>() else { break };
        let Some((data, behind)) = behind.split_at_checked(length) else { break };
        if let Some(keyword_end) = data.iter().position(|byte| *byte == 0) {
            let (keyword, content) = (&data[..keyword_end], &data[keyword_end + 1..]);
            let text = match kind {
                b"tEXt" => Some(content.iter().map(|byte| char::from(*byte)).collect()),
                b"iTXt" if content.first() == Some(&0) => international(content),
                _ => None,
            };
            if let Some(text) = text {
                texts.insert(String::from_utf8_lossy(keyword).into_owned(), text);
            }
        }
        rest = behind.get(4..).unwrap_or_default();
    }
    texts
}

/// Returns the text of an `iTXt` chunk, which follows the compression flags, the language and the translated keyword.
fn international(content: &[u8]) -> Option<String> {
    let text = content.get(2..)?.splitn(3, |byte| *byte == 0).nth(2)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Limits, Picture};

    #[test]
    fn texts_are_inserted_and_read() {
        // The check value of this CRC.
        assert_eq!(crc32fast::hash(b"123456789"), 0xCBF4_3926);
        let picture = Picture::new(2, 1, vec![1, 2, 3, 4, 5, 6]).unwrap();
        for text in ["", "a\nb: ä", "猫, 1 × 2"] {
            let mut file = picture.png().unwrap();
            insert(&mut file, "parameters", text);
            assert_eq!(read(&file)["parameters"], text);
            assert_eq!(Picture::decode(&file, Limits::default()).unwrap(), picture);
            for length in 0..file.len() {
                read(&file[..length]);
            }
        }
        assert!(read(b"").is_empty() && read(&picture.png().unwrap()).is_empty());
    }
}
