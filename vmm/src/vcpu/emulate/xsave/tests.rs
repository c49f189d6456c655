use kvm_bindings::{kvm_regs, kvm_sregs};
use tine_devices::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use super::super::registers::{CR0_PG, EFER_LMA};
use super::*;

const AREA: u64 = 0x8000;
const XCR0: u64 = X87 | SSE | AVX;

/// A guest whose first MiB is mapped one to one.
fn guest() -> GuestMemory {
    let ram = GuestMemory::from_ranges(&[(GuestAddress(0), 1 << 20)]).unwrap();
    for (at, entry) in [(0x1000, 0x2003u64), (0x2000, 0x3003), (0x3000, 0x83)] {
        ram.write_obj(entry, GuestAddress(at)).unwrap();
    }
    ram
}

fn with_request<T>(ram: &GuestMemory, components: u64, f: impl FnOnce(Request<'_>) -> T) -> T {
    let sregs = kvm_sregs {
        cr0: CR0_PG,
        cr3: 0x1000,
        efer: EFER_LMA,
        ..Default::default()
    };
    let mut layout = Layout([None; 63]);
    layout.0[2] = Some((576, 256));
    f(Request {
        layout: &layout,
        memory: &Memory::new(ram, &kvm_regs::default(), &sregs),
        address: AREA,
        components,
        xcr0: XCR0,
        wide: true,
    })
}

/// A state with every byte of its components the same.
fn image(byte: u8, in_use: u64) -> Image {
    let mut image = Image::initial(0xffff);
    for range in [0..MXCSR, 32..416, 576..832] {
        image.0[range].fill(byte);
    }
    image.set_in_use(in_use);
    image
}

fn area(ram: &GuestMemory) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    ram.read_slice(&mut bytes, GuestAddress(AREA)).unwrap();
    bytes
}

#[test]
fn what_is_saved_is_restored() {
    let ram = guest();
    let saved = image(0x5a, XCR0);
    with_request(&ram, XCR0, |request| request.save(&saved, false)).unwrap();
    let restored = with_request(&ram, XCR0, |request| request.restore(image(1, XCR0))).unwrap();
    assert!(restored.0 == saved.0);
    assert!(Image::from_kvm(&restored.to_kvm()).0 == saved.0);
}

#[test]
fn saving_touches_only_what_is_asked_for() {
    let ram = guest();
    ram.write_slice(&[0xcc; 1024], GuestAddress(AREA)).unwrap();
    with_request(&ram, AVX, |request| request.save(&image(0x5a, XCR0), false)).unwrap();
    let bytes = area(&ram);
    assert_eq!(bytes[..MXCSR], [0xcc; MXCSR]);
    assert_eq!(word32(&bytes[MXCSR..]), MXCSR_INIT, "goes with AVX too");
    assert_eq!(bytes[32..512], [0xcc; 480]);
    assert_eq!(bytes[512], 0xcc | 4, "only its own bit changes");
    assert_eq!(bytes[513..576], [0xcc; 63]);
    assert_eq!(bytes[576..832], [0x5a; 256]);
    assert_eq!(bytes[832..], [0xcc; 192]);
}

#[test]
fn the_initial_state_is_written_by_xsave_and_not_by_xsaveopt() {
    for (only_in_use, expected) in [(false, 0), (true, 0xcc)] {
        let ram = guest();
        ram.write_slice(&[0xcc; 512], GuestAddress(AREA + 512))
            .unwrap();
        let state = image(0, X87 | SSE);
        with_request(&ram, XCR0, |request| request.save(&state, only_in_use)).unwrap();
        let bytes = area(&ram);
        assert_eq!(bytes[512] & 7, 3);
        assert_eq!(bytes[576], expected);
    }
}

#[test]
fn restoring_keeps_what_is_not_asked_for() {
    let ram = guest();
    with_request(&ram, XCR0, |r| r.save(&image(0x5a, XCR0), false)).unwrap();
    let restored = with_request(&ram, SSE, |r| r.restore(image(1, X87 | AVX))).unwrap();
    assert_eq!(restored.in_use(), XCR0);
    assert_eq!(restored.0[32..160], [1; 128]);
    assert_eq!(restored.0[160..416], [0x5a; 256]);
    assert_eq!(restored.0[576..832], [1; 256]);
}

#[test]
fn a_component_without_its_bit_is_initialized() {
    let ram = guest();
    let mut saved = image(0x5a, X87);
    saved.put(MXCSR, &0x1f00u32.to_le_bytes());
    with_request(&ram, XCR0, |request| request.save(&saved, false)).unwrap();
    let restored = with_request(&ram, XCR0, |request| request.restore(image(1, XCR0))).unwrap();
    assert_eq!(restored.0[160..416], [0; 256]);
    assert_eq!(restored.0[576..832], [0; 256]);
    assert_eq!(restored.mxcsr(), 0x1f00);
    assert_eq!(
        restored.in_use(),
        X87 | SSE,
        "KVM takes MXCSR with SSE alone"
    );
}

#[test]
fn a_header_that_lies_is_refused() {
    let general = Err(Stop::Exception(Exception::GeneralProtection));
    for (at, value) in [
        (512, 1u64 << 9), // not in XCR0
        (520, 1 << 63),   // the compacted format
        (520, 1),
        (528, 1),
        (24, 0x8000_0000), // MXCSR
    ] {
        let ram = guest();
        with_request(&ram, XCR0, |request| request.save(&image(1, XCR0), false)).unwrap();
        ram.write_obj(value, GuestAddress(AREA + at)).unwrap();
        let restored = with_request(&ram, XCR0, |request| request.restore(image(1, 0)));
        assert_eq!(restored.map(|_| ()), general, "{at} {value:#x}");
    }
}

#[test]
fn an_unaligned_area_is_refused() {
    let general = Err(Stop::Exception(Exception::GeneralProtection));
    let ram = guest();
    let saved = with_request(&ram, XCR0, |mut request| {
        request.address += 16;
        request.save(&image(1, XCR0), false)
    });
    assert_eq!(saved, general);
}

#[test]
fn a_component_without_a_place_is_refused() {
    let ram = guest();
    let saved = with_request(&ram, XCR0 | 1 << 18, |request| {
        request.save(&image(1, XCR0), false)
    });
    assert_eq!(saved, Err(Stop::Refused));
}

#[test]
fn the_narrow_form_has_32_bit_pointers() {
    let ram = guest();
    let saved = with_request(&ram, XCR0, |mut request| {
        request.wide = false;
        request.save(&image(0x5a, XCR0), false)
    });
    saved.unwrap();
    let bytes = area(&ram);
    assert_eq!(bytes[8..24], *b"ZZZZ\0\0\0\0ZZZZ\0\0\0\0");
}
