use super::*;

fn place(code: &[u8]) -> (Place, u8) {
    let found = decode(code).unwrap();
    match found.operation {
        Operation::Xsave(xsave) | Operation::Xrstor(xsave) => (xsave.area, found.len),
        Operation::Cmpxchg16b(place)
        | Operation::Popcnt {
            from: Operand::Memory(place),
            ..
        } => (place, found.len),
        other => panic!("{other:?} has no memory operand"),
    }
}

/// The address for registers that are told apart by their values, at RIP 0x1000.
fn address(code: &[u8]) -> u64 {
    let mut regs = kvm_regs {
        rip: 0x1000,
        ..Default::default()
    };
    for number in 0..16 {
        registers::set(&mut regs, number, 0x100_0000 * (u64::from(number) + 1));
    }
    let mut sregs = kvm_sregs::default();
    (sregs.fs.base, sregs.gs.base) = (0x7000_0000_0000, 0xffff_8000_0000_0000);
    let (place, len) = place(code);
    assert_eq!(usize::from(len), code.len());
    place.address(&regs, &sregs, len)
}

/// Every expectation is what GNU as makes of the text beside it.
#[test]
fn addresses_are_computed_as_the_manual_says() {
    // xsave [rdi]
    assert_eq!(address(&[0x0f, 0xae, 0x27]), 0x800_0000);
    // xsave64 [r8]
    assert_eq!(address(&[0x49, 0x0f, 0xae, 0x20]), 0x900_0000);
    // xsave [rdi - 1]
    assert_eq!(address(&[0x0f, 0xae, 0x67, 0xff]), 0x7ff_ffff);
    // xrstor [rsp + 0x40]
    assert_eq!(address(&[0x0f, 0xae, 0x6c, 0x24, 0x40]), 0x500_0040);
    // xrstor [rip + 0x10]: behind the instruction's seven bytes
    assert_eq!(
        address(&[0x0f, 0xae, 0x2d, 0x10, 0, 0, 0]),
        0x1000 + 7 + 0x10
    );
    // xsave [0xfffffffff0000000]
    let absolute = [0x0f, 0xae, 0x24, 0x25, 0, 0, 0, 0xf0];
    assert_eq!(address(&absolute), 0xffff_ffff_f000_0000);
    // xsave [r13 + r12*8 + 0x12345678]
    let scaled = [0x43, 0x0f, 0xae, 0xa4, 0xe5, 0x78, 0x56, 0x34, 0x12];
    assert_eq!(address(&scaled), 0xe00_0000 + 0xd00_0000 * 8 + 0x1234_5678);
    // xsave fs:[rdi], xsave gs:[rdi]
    assert_eq!(address(&[0x64, 0x0f, 0xae, 0x27]), 0x7000_0800_0000);
    assert_eq!(address(&[0x65, 0x0f, 0xae, 0x27]), 0xffff_8000_0800_0000);
    // xsave [edi - 0x7f000001]: 32 bits
    let short = [0x67, 0x0f, 0xae, 0xa7, 0xff, 0xff, 0xff, 0x80];
    assert_eq!(address(&short), 0x88ff_ffff);
}

#[test]
fn variants_are_told_apart() {
    let operation = |code: &[u8]| decode(code).map(|found| found.operation);
    assert_eq!(operation(&[0x9b]), Ok(Operation::Fwait));
    assert_eq!(operation(&[0xcc]), Ok(Operation::Int3));
    assert_eq!(operation(&[0x0f, 0x01, 0xcb]), Ok(Operation::Stac));
    assert_eq!(operation(&[0x0f, 0x01, 0xca]), Ok(Operation::Clac));
    assert_eq!(operation(&[0x0f, 0x01, 0xd0]), Ok(Operation::Xgetbv));
    // xsaveopt64 [rdi]
    assert!(matches!(
        operation(&[0x48, 0x0f, 0xae, 0x37]),
        Ok(Operation::Xsave(Xsave {
            wide: true,
            only_in_use: true,
            ..
        }))
    ));
    // popcnt r9, rdi
    assert_eq!(
        operation(&[0xf3, 0x4c, 0x0f, 0xb8, 0xcf]),
        Ok(Operation::Popcnt {
            to: 9,
            from: Operand::Register(7),
            bytes: 8,
        })
    );
    // popcnt ax, r15w
    assert_eq!(
        operation(&[0x66, 0xf3, 0x41, 0x0f, 0xb8, 0xc7]),
        Ok(Operation::Popcnt {
            to: 0,
            from: Operand::Register(15),
            bytes: 2,
        })
    );
    // lock cmpxchg16b [rsi]
    assert!(matches!(
        operation(&[0xf0, 0x48, 0x0f, 0xc7, 0x0e]),
        Ok(Operation::Cmpxchg16b(_))
    ));
}

#[test]
fn neighbours_in_the_opcode_map_are_not_known() {
    let others: [&[u8]; 9] = [
        &[0x0f, 0xae, 0xe7],             // a register form
        &[0x66, 0x0f, 0xae, 0x37],       // clwb [rdi]
        &[0xf3, 0x0f, 0xae, 0xe0],       // ptwrite eax
        &[0xf0, 0x0f, 0xae, 0x27],       // lock xsave [rdi]: invalid
        &[0x0f, 0xc7, 0x0e],             // cmpxchg8b [rsi]
        &[0x48, 0x0f, 0xc7, 0x27],       // xsavec64 [rdi]
        &[0x0f, 0xb8, 0xc7],             // jmpe
        &[0x48, 0x66, 0x0f, 0xc7, 0x0e], // REX that does not count
        &[0x0f, 0x01, 0xd1],             // xsetbv
    ];
    for code in others {
        assert_eq!(decode(code), Err(Unreadable::Unknown), "{code:02x?}");
    }
}

#[test]
fn the_length_is_bounded() {
    assert_eq!(decode(&[]), Err(Unreadable::Truncated));
    assert_eq!(decode(&[0x66; 14]), Err(Unreadable::Truncated));
    assert_eq!(decode(&[0x66; 100]), Err(Unreadable::Unknown));
    let mut longest = [0x2e; 16];
    longest[14] = 0x9b;
    assert_eq!(decode(&longest).unwrap().len, 15);
    let mut too_long = [0x2e; 16];
    too_long[15] = 0x9b;
    assert_eq!(decode(&too_long), Err(Unreadable::Unknown));
}

/// Every byte string has an answer, and a longer one does not change it unless more bytes were
/// asked for.
#[test]
fn any_bytes_have_an_answer() {
    let mut seed = 1u64;
    let mut random = move || {
        // xorshift64*
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        (seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56) as u8
    };
    let starts: [&[u8]; 6] = [
        &[],
        &[0x0f],
        &[0x0f, 0xae],
        &[0x48, 0x0f, 0xc7],
        &[0xf3, 0x0f, 0xb8],
        &[0x67, 0x65, 0x4f, 0x0f, 0xae],
    ];
    for round in 0..200_000 {
        let mut code = starts[round % starts.len()].to_vec();
        code.resize(code.len() + round % 18, 0);
        let known = starts[round % starts.len()].len();
        code[known..].fill_with(&mut random);
        let whole = decode(&code);
        if let Ok(found) = whole {
            let len = usize::from(found.len);
            assert!((1..=MAX_LEN.min(code.len())).contains(&len));
            assert_eq!(decode(&code[..len]), whole, "{code:02x?}");
            assert_eq!(decode(&code[..len - 1]), Err(Unreadable::Truncated));
        }
    }
}
