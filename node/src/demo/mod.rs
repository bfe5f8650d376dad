//! `towline demo`: the whole idea on real input.
