//! Messages of gRPC, whose values are counted before they are decoded: a value of two bytes takes fifty times that as a message.

use std::marker::PhantomData;

use bytes::Buf as _;
use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use crate::convert::{AnswerKind, check_protobuf_answer};

/// An answer that holds more than is read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct TooMuch(pub(super) String);

/// Writes requests `Q`, and reads answers `A` of one kind.
pub(super) struct Counted<Q, A> {
    kind: AnswerKind,
    messages: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Counted<Q, A> {
    pub(super) fn new(kind: AnswerKind) -> Self {
        Self { kind, messages: PhantomData }
    }

    fn again(&self) -> Self {
        Self::new(self.kind)
    }
}

impl<Q: Message + 'static, A: Message + Default + 'static> Codec for Counted<Q, A> {
    type Encode = Q;
    type Decode = A;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.again()
    }

    fn decoder(&mut self) -> Self {
        self.again()
    }
}

impl<Q: Message, A> Encoder for Counted<Q, A> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, request: Q, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Q, A: Message + Default> Decoder for Counted<Q, A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        let message = from.copy_to_bytes(from.remaining());
        check_protobuf_answer(&message, self.kind).map_err(|why| Status::from_error(Box::new(TooMuch(why))))?;
        A::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
