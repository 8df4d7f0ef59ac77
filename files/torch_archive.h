// torch_archive.h - locates tensors in files of torch.save (pytorch_model.bin). No code in such a
// file is run.
//
// Such a file is a zip of stored entries: NAME/data.pkl is a pickle that builds a dictionary of
// tensors, and each entry NAME/data/KEY is a storage, the raw elements of one or more tensors.
#pragma once
#include "safetensors.h"

bool is_torch_archive(const File& file);    // as zip, or in the format before PyTorch 1.6
// Entries as from safetensors_parse, but with offsets from the beginning of the file; F32, BF16 and
// F16 only, in the dictionary's order. Every size and offset is compared with the file's size. Exit
// 3: compressed entries; a pickle with objects other than values, tuples, lists, dictionaries and
// tensors; non-contiguous tensors. Exit 4: the disk fails.
Result<std::vector<TensorEntry>> torch_entries(const File& file);
