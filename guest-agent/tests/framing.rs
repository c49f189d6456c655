//! Properties of the protocol's encodings.

use proptest::prelude::*;
use tine_guest_agent::exec::ExecRequest;
use tine_guest_agent::frame::{self, Decoder, Frame, FrameError, HEADER_LEN, MAX_PAYLOAD, Stream};
use tine_guest_agent::octets::{Octets, decode_base64, encode_base64};

fn any_stream() -> impl Strategy<Value = Stream> {
    (0..4u8).prop_map(|number| Stream::from_number(number).unwrap())
}

proptest! {
    #[test]
    fn frames_survive_any_cutting(
        frames in prop::collection::vec((any_stream(), prop::collection::vec(any::<u8>(), 0..300)), 0..20),
        cuts in prop::collection::vec(1..200usize, 1..40),
    ) {
        let mut bytes = Vec::new();
        for (stream, payload) in &frames {
            frame::encode(*stream, payload, &mut bytes);
        }
        let mut decoder = Decoder::new();
        let mut seen = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            decoder.push(now);
            rest = later;
            while let Some(frame) = decoder.next_frame().unwrap() {
                seen.push((frame.stream, frame.payload));
            }
        }
        prop_assert_eq!(seen, frames);
        prop_assert_eq!(decoder.pending(), 0);
    }

    #[test]
    fn any_bytes_give_frames_or_an_error_and_bounded_memory(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let mut decoder = Decoder::new();
        for part in bytes.chunks(7) {
            decoder.push(part);
            loop {
                match decoder.next_frame() {
                    Ok(Some(frame)) => prop_assert!(frame.payload.len() <= MAX_PAYLOAD),
                    Ok(None) => break,
                    Err(_) => return Ok(()),
                }
            }
            prop_assert!(decoder.pending() <= MAX_PAYLOAD + HEADER_LEN);
        }
    }

    #[test]
    fn base64_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert_eq!(decode_base64(&encode_base64(&bytes)), Some(bytes));
    }

    #[test]
    fn base64_has_one_spelling(text in "[A-Za-z0-9+/=]{0,16}") {
        if let Some(bytes) = decode_base64(&text) {
            prop_assert_eq!(encode_base64(&bytes), text);
        }
    }

    #[test]
    fn octets_survive_json(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let json = serde_json::to_string(&Octets(bytes.clone())).unwrap();
        prop_assert_eq!(serde_json::from_str::<Octets>(&json).unwrap().0, bytes);
    }

    #[test]
    fn no_body_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = ExecRequest::from_json(&bytes);
    }

    #[test]
    fn requests_survive_json(
        argv in prop::collection::vec(prop::collection::vec(1..=255u8, 1..9), 1..4),
        value in prop::collection::vec(1..=255u8, 0..9),
        flags in any::<(bool, bool)>(),
        number in prop::option::of(0..1_000_000u64),
    ) {
        let request = ExecRequest {
            request_id: "a-1".into(),
            argv: argv.into_iter().map(Octets).collect(),
            env: [("K".to_owned(), Octets(value))].into(),
            clear_env: flags.0,
            stdin: flags.1,
            timeout_ms: number,
            output_limit: number,
            ..ExecRequest::default()
        };
        let json = serde_json::to_vec(&request).unwrap();
        let back = ExecRequest::from_json(&json).unwrap();
        prop_assert_eq!(back.digest(), request.digest());
        prop_assert_eq!(back, request);
    }
}

#[test]
fn long_payloads_are_split() {
    let mut bytes = Vec::new();
    frame::encode(Stream::Stdout, &vec![1; MAX_PAYLOAD + 1], &mut bytes);
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    assert_eq!(
        decoder.next_frame().unwrap().unwrap().payload.len(),
        MAX_PAYLOAD
    );
    let last = Frame {
        stream: Stream::Stdout,
        payload: vec![1],
    };
    assert_eq!(decoder.next_frame(), Ok(Some(last)));
}

#[test]
fn errors_name_what_is_wrong() {
    let decode = |bytes: &[u8]| {
        let mut decoder = Decoder::new();
        decoder.push(bytes);
        decoder.next_frame()
    };
    assert_eq!(
        decode(&[4, 0, 0, 0, 0, 0, 0, 0]),
        Err(FrameError::UnknownStream(4))
    );
    assert_eq!(decode(&[1, 0, 1, 0, 0, 0, 0, 0]), Err(FrameError::Reserved));
    assert_eq!(
        decode(&[1, 0, 0, 0, 0xff, 0, 0, 0]),
        Err(FrameError::TooLong(0xff00_0000))
    );
    assert_eq!(decode(&[1, 0, 0, 0, 0, 0, 0]), Ok(None));
}
