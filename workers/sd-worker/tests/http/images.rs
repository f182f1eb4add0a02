//! Valid and invalid image files.
#![allow(dead_code)]
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sd_worker::picture::{Limits, Picture};

/// Returns a striped image as PNG.
pub fn png(width: usize, height: usize) -> Vec<u8> {
    let rgb = (0..width * height * 3).map(|i| (i * 7 % 251) as u8).collect();
    Picture::new(width, height, rgb).unwrap().png().unwrap()
}

/// Returns a mask of the right half as PNG.
pub fn mask(width: usize, height: usize) -> Vec<u8> {
    let light = |i: usize| if i % width >= width / 2 { 255 } else { 0 };
    let rgb = (0..width * height).flat_map(|i| [light(i); 3]).collect();
    Picture::new(width, height, rgb).unwrap().png().unwrap()
}

pub fn base64(file: &[u8]) -> String {
    BASE64_STANDARD.encode(file)
}

/// Decodes the image of a response.
pub fn picture(base64: &serde_json::Value) -> Picture {
    let file = BASE64_STANDARD.decode(base64.as_str().unwrap()).unwrap();
    Picture::decode(&file, Limits::default()).unwrap()
}

fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    })
}

fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let named = [kind, data].concat();
    [&(data.len() as u32).to_be_bytes()[..], &named, &checksum(&named).to_be_bytes()].concat()
}

/// Returns a PNG whose header has the given size, with `data` as its image data.
pub fn png_with_size(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    let head = [&size[..], &[8, 2, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &head), chunk(b"IDAT", data), chunk(b"IEND", b"")].concat()
}

/// Returns invalid image files with descriptions.
pub fn invalid_images() -> Vec<(&'static str, Vec<u8>)> {
    let good = png(32, 32);
    // A decompression bomb: a small file that decodes to 4096 x 4096 black pixels.
    let bomb = Picture::new(4096, 4096, vec![0; 4096 * 4096 * 3]).unwrap().png().unwrap();
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let mut flipped = good.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 0x55;
    vec![
        ("nothing", vec![]),
        ("no picture", b"hello, I am a picture".to_vec()),
        ("a GIF", b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01".to_vec()),
        ("a BMP", b"BM\x3a\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00".to_vec()),
        ("a PNG that claims 60000 x 60000", png_with_size(60_000, 60_000, b"x")),
        ("a PNG that claims 2^31 x 2^31", png_with_size(1 << 31, 1 << 31, b"")),
        ("a PNG of no pixels", png_with_size(0, 32, b"")),
        ("a PNG whose data are none", png_with_size(32, 32, b"not deflated")),
        ("a PNG cut in the middle", good[..good.len() / 2].to_vec()),
        ("a PNG with a damaged byte", flipped),
        ("the head of a PNG", good[..8].to_vec()),
        ("many zeros in few bytes", bomb),
        ("a JPEG of a head alone", b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01".to_vec()),
        (
            "a JPEG that claims 65535 x 65535",
            b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x11\x00\x02\x11\x01\x03\x11\x01\xff\xd9"
                .to_vec(),
        ),
        ("a WebP of a head alone", b"RIFF\x10\x00\x00\x00WEBPVP8 \x00\x00\x00\x00".to_vec()),
    ]
}
