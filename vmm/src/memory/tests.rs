use std::os::unix::fs::FileExt;

use vm_memory::Bytes;

use super::*;

const SIZE: u64 = layout::MIN_MEMORY;

fn put(memory: &MachineMemory, page: u64, value: u64) {
    let at = GuestAddress(page * PAGE);
    memory.regions.write_obj(value, at).unwrap();
}

fn get(memory: &MachineMemory, page: u64) -> u64 {
    memory.regions.read_obj(GuestAddress(page * PAGE)).unwrap()
}

#[test]
fn memory_is_zero_and_has_the_size_asked_for() {
    let memory = MachineMemory::create(5 << 30).unwrap();
    let total: u64 = memory.regions.iter().map(|region| region.len()).sum();
    assert_eq!(total, 5 << 30);
    let gap = layout::MMIO_GAP;
    for addr in [0, gap.start - 8, gap.end] {
        let read = memory.regions.read_obj::<u64>(GuestAddress(addr));
        assert_eq!(read.unwrap(), 0);
    }
    let in_gap = GuestAddress(gap.start);
    assert!(memory.regions.read_obj::<u64>(in_gap).is_err());
}

#[test]
fn the_file_cannot_be_resized() {
    let memory = MachineMemory::create(SIZE).unwrap();
    let region = memory.regions.iter().next().unwrap();
    let file = region.file_offset().unwrap().file();
    assert!(file.set_len(0).is_err());
}

#[test]
fn a_frozen_image_stays_while_the_memory_goes_on() {
    let memory = MachineMemory::create(SIZE).unwrap();
    put(&memory, 3, 33);
    let image = memory.freeze().unwrap();
    // The pages were moved away, not let go of.
    assert_eq!(memory.take_replaced().len(), 1);
    put(&memory, 3, 34);
    put(&memory, 4, 44);
    let copy = MachineMemory::map(image.clone()).unwrap();
    assert_eq!((get(&copy, 3), get(&copy, 4)), (33, 0));
    assert_eq!((get(&memory, 3), get(&memory, 4)), (34, 44));
    put(&copy, 5, 55);
    assert_eq!(get(&memory, 5), 0, "copies do not see each other");
    assert!(image.layers[0].file.write_at(&[1], 0).is_err(), "sealed");
}

#[test]
fn a_second_freeze_adds_what_was_written_since() {
    let memory = MachineMemory::create(SIZE).unwrap();
    put(&memory, 3, 33);
    memory.freeze().unwrap();
    put(&memory, 3, 34);
    put(&memory, 1000, 7);
    let second = memory.freeze().unwrap();
    let runs = &second.layers[1].runs;
    let covered: u64 = runs.iter().map(|r| r.range.end - r.range.start).sum();
    assert_eq!((runs.len(), covered), (2, 2 * PAGE));
    put(&memory, 1000, 8);
    let third = memory.freeze().unwrap();
    assert_eq!(third.layers.len(), 3);
    assert_eq!(third.layers[2].runs.len(), 1, "only what was written since");
    for (image, wanted) in [(second, 7), (third, 8)] {
        let copy = MachineMemory::map(image).unwrap();
        assert_eq!((get(&copy, 3), get(&copy, 1000)), (34, wanted));
    }
    assert_eq!((get(&memory, 3), get(&memory, 1000)), (34, 8));
}

#[test]
fn a_freeze_of_what_was_not_written_costs_no_layer() {
    let memory = MachineMemory::create(SIZE).unwrap();
    put(&memory, 3, 33);
    let image = memory.freeze().unwrap();
    assert_eq!(get(&memory, 3), 33);
    assert_eq!(memory.freeze().unwrap().layers.len(), image.layers.len());
}

#[test]
fn many_layers_become_one() {
    let memory = MachineMemory::create(SIZE).unwrap();
    for round in 0..40 {
        put(&memory, round * 100, round);
        let image = memory.freeze().unwrap();
        assert!(image.layers.len() <= 17);
        let copy = MachineMemory::map(image).unwrap();
        for before in 0..=round {
            assert_eq!(get(&copy, before * 100), before);
        }
        assert_eq!(get(&copy, 4000), 0);
    }
}

#[test]
fn memory_beyond_the_gap_is_frozen_too() {
    let memory = MachineMemory::create(layout::MMIO_GAP.start + (64 << 20)).unwrap();
    let high = layout::MMIO_GAP.end / PAGE + 5;
    put(&memory, high, 1);
    memory.freeze().unwrap();
    put(&memory, high, 2);
    let copy = MachineMemory::map(memory.freeze().unwrap()).unwrap();
    assert_eq!(get(&copy, high), 2);
    assert_eq!(get(&copy, high + 1), 0);
}

#[test]
fn ranges_close_together_are_joined() {
    assert_eq!(join(vec![0..1, 2..3, 9..10], 1), [0..3, 9..10]);
    let one = 0..5;
    assert_eq!(join(vec![0..5, 1..2], 0), std::slice::from_ref(&one));
}
