//! Images that are damaged, or were made to do damage: an error or data, never a panic, a wait or a
//! write where nothing may be written.

use proptest::prelude::*;

use super::*;

/// An image with something in it, as bytes.
fn image() -> Vec<u8> {
    let stack = Stack::new(1);
    std::fs::read(stack.top()).unwrap()
}

/// Opens the image and uses it in every way.
fn use_it(bytes: &[u8]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    std::fs::write(&path, bytes).unwrap();
    let base = dir.path().join("base.raw");
    File::create(&base).unwrap().set_len(SIZE).unwrap();
    let open = |layer| Chain::open(vec![Layer::open(&base, Format::Raw).unwrap(), layer]);
    // To be read, much is believed: it leads to wrong bytes at worst.
    let text = |err: tine_devices::virtio::block::layers::LayerError| {
        assert!(
            err.to_string().contains("image.qcow2"),
            "no file is named: {err}"
        );
        err.to_string()
    };
    if let Ok(chain) = Layer::open(&path, Format::Qcow2).and_then(open) {
        let mut buffer = vec![0; 1 << 20];
        for offset in (0..chain.virtual_size().min(2 * SIZE)).step_by(1 << 20) {
            let _ = chain.read(&mut buffer, offset);
        }
    }
    let writable = Layer::open_writable(&path, Format::Qcow2).map_err(text)?;
    let mut chain = open(writable).map_err(text)?;
    let last = chain.virtual_size().saturating_sub(8192) / 512 * 512;
    let mut result = Ok(());
    for (n, offset) in [0, 3 * CLUSTER + 4096, 7 * CLUSTER, last]
        .into_iter()
        .enumerate()
    {
        if offset + 8192 > chain.virtual_size() {
            continue;
        }
        let bytes = pattern(offset, 8192, n as u64);
        result = result.and(chain.write(&bytes, offset));
        result = result.and(chain.discard(offset + 512, 1024));
        result = result.and(chain.write_zeroes(offset + 2048, 512, false));
    }
    let result = result
        .and_then(|()| chain.sync())
        .map_err(|err| err.to_string());
    drop(chain);
    // What was opened to be written, and written, is whole afterwards.
    if result.is_ok() {
        assert_clean(&path);
    }
    result
}

#[test]
fn the_image_itself_is_fine() {
    use_it(&image()).unwrap();
}

#[test]
fn every_bit_of_the_header_may_be_wrong() {
    let image = image();
    for at in 0..104 {
        for bit in 0..8 {
            let mut bytes = image.clone();
            bytes[at] ^= 1 << bit;
            let _ = use_it(&bytes);
        }
    }
}

#[test]
fn extensions_of_the_header_are_whole_or_refused() {
    let image = image();
    let names = 0x6803_f857_u32.to_be_bytes();
    let found = image[..4096].windows(4).position(|word| word == names);
    let at = found.expect("names of features");
    let with = |at: usize, words: &[u32]| {
        let mut bytes = image.clone();
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes[at..at + words.len()].copy_from_slice(&words);
        use_it(&bytes)
    };
    // A name that ends behind its first byte, or within.
    for len in [1, 49, 48 + 47] {
        let err = with(at + 4, &[len]).unwrap_err();
        assert!(err.contains("names of features"), "{len}: {err}");
    }
    with(at + 4, &[0, 0, 0]).unwrap();
    for len in [u32::MAX, 1 << 31, CLUSTER as u32] {
        let err = with(at + 4, &[len]).unwrap_err();
        assert!(err.contains("first cluster"), "{len}: {err}");
    }
    let err = with(at, &[7, 0].repeat(200)).unwrap_err();
    assert!(err.contains("too many"), "{err}");
}

/// The offset of the table that a field of the header names.
fn table(image: &[u8], field: usize) -> usize {
    u64::from_be_bytes(image[field..field + 8].try_into().unwrap()) as usize
}

const L1: usize = 40;
const REFTABLE: usize = 48;

#[test]
fn entries_that_lead_to_the_images_own_tables_are_refused() {
    let image = image();
    let l1 = table(&image, L1);
    let l2 = table(&image, l1) & 0x00ff_ffff_ffff_fe00;
    let data = (0..8192)
        .map(|n| l2 + n * 8)
        .find(|at| image[*at..*at + 8] != [0; 8]);
    let data = data.unwrap();
    let reftable = table(&image, REFTABLE);
    let copied = 1_u64 << 63;
    // Guest data in the header, in L1, in L2, in another cluster of data, unaligned, far beyond.
    let other = table(&image, data + 8) as u64 & 0x00ff_ffff_ffff_fe00;
    let targets = [0x200, l1 as u64, l2 as u64, other, 0x5_0200, 1 << 50];
    for target in targets {
        let mut bytes = image.clone();
        bytes[data..data + 8].copy_from_slice(&(target | copied).to_be_bytes());
        let err = use_it(&bytes).unwrap_err();
        assert!(err.contains("damaged"), "{target:#x}: {err}");
    }
    // The reference counts' own place is not a table's to give away: they are made anew elsewhere.
    let mut bytes = image.clone();
    bytes[data..data + 8].copy_from_slice(&(reftable as u64 | copied).to_be_bytes());
    use_it(&bytes).unwrap();
}

#[test]
fn a_file_whose_length_was_lost_is_whole_again() {
    let image = image();
    // Its last clusters are data: what refers to them is still there.
    for clusters in 1..=2 {
        let bytes = &image[..image.len() - clusters * CLUSTER as usize];
        use_it(bytes).unwrap();
    }
}

#[test]
fn wrong_reference_counts_are_made_anew() {
    let image = image();
    let reftable = table(&image, REFTABLE);
    let block = table(&image, reftable);
    for (at, value) in [
        (block, 0_u64),
        (block, u64::MAX),
        (block + 8, 0),
        (reftable, 0),
        (reftable, 1 << 40),
        (reftable, 0x1234),
        (reftable + 8, block as u64),
    ] {
        let mut bytes = image.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        use_it(&bytes).unwrap_or_else(|err| panic!("{value:#x} at {at:#x}: {err}"));
    }
}

#[test]
fn an_image_cut_off_anywhere_does_no_harm() {
    let image = image();
    let places = (0..image.len()).step_by(4096).chain(0..200);
    for len in places.collect::<Vec<_>>() {
        let _ = use_it(&image[..len]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn tables_may_say_anything(
        changes in prop::collection::vec(
            (0..3_usize, 0..64_usize, prop_oneof![
                any::<u64>(),
                (0..40_u64, any::<bool>())
                    .prop_map(|(n, copied)| (n * CLUSTER) | (u64::from(copied) << 63)),
                (0..64_u32).prop_map(|bit| 1 << bit),
            ]),
            1..5,
        ),
    ) {
        let mut bytes = image();
        let l1 = table(&bytes, L1);
        let l2 = table(&bytes, l1) & 0x00ff_ffff_ffff_fe00;
        let starts = [l1, l2, table(&bytes, REFTABLE)];
        for (which, entry, value) in changes {
            let at = starts[which] + entry * 8;
            bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
        let _ = use_it(&bytes);
    }
}
