"""A sentence embedding by a ranking loss over pairs, with its evaluator."""

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed

set_seed(0)
things = ["cat", "dog", "car", "tree", "river", "house", "bird", "road"]
names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "a", "big", "old", "sees", "one", *things]
words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
).save_pretrained("base")
config = BertConfig(
    vocab_size=len(names), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=32,
)
BertModel(config).save_pretrained("base")
bert = Transformer("base", max_seq_length=16)
model = SentenceTransformer(modules=[bert, Pooling(32)], device="cpu").double()
pairs = [(f"the big {a} sees a {b}", f"one old {a} sees the {b}") for a in things for b in things]
train = Dataset.from_dict({"anchor": [a for a, _ in pairs[:48]], "positive": [b for _, b in pairs[:48]]})
first, second = [a for a, _ in pairs[48:]], [b for _, b in pairs[48:]]
scores = [float(i % 3 == 0) for i in range(len(first))]
second = [b if score else first[0] for b, score in zip(second, scores)]
evaluator = EmbeddingSimilarityEvaluator(first, second, scores, name="pairs")
arguments = SentenceTransformerTrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=16, learning_rate=2e-3, logging_steps=1,
    use_cpu=True, report_to="none", eval_strategy="epoch", save_strategy="no", disable_tqdm=True,
)
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=train, evaluator=evaluator,
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.train()
print(evaluator(model), model.encode(first[:2], convert_to_tensor=True).sum(1).tolist())
model.save_pretrained("final")
