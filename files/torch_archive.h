// torch_archive.h - tensors in the files of torch.save (pytorch_model.bin): where their bytes lie. Nothing that such a
// file says is run.
//
// Such a file is a zip of stored entries: NAME/data.pkl is a pickle that builds a dictionary of tensors, and each other
// entry NAME/data/KEY is a storage, the plain numbers of one or more tensors.
#pragma once
#include "safetensors.h"

bool is_torch_archive(const File& file);    // as a zip, or as PyTorch's format before 1.6
// As safetensors_parse gives them, but from the beginning of the file; of F32, BF16 and F16 alone, in the order of the
// dictionary. Every size and offset is compared with the file's. Exit 3: compressed entries, a pickle with more than
// values, tuples, lists, dictionaries and tensors, a tensor whose numbers do not follow one another; 4.
Result<std::vector<TensorEntry>> torch_entries(const File& file);
