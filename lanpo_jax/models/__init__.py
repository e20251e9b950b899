"""Networks: the decoder, attention kernels, and weights from published formats."""
