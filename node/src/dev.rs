//! `towline dev`: a cluster of three nodes in the foreground.
