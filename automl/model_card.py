"""The page that goes with an exported model: what it is, how good it is, how to use it."""

from automl.tasks import Task

_CARD = """# {name}

An image classifier with {labels} classes, exported by attention-automl from MLflow run `{run_id}`.

| | |
|---|---|
| backbone | {backbone}, width {width:g} |
| attention | {attention} |
| data | {source}, {size} px |
| training | {epochs} epochs, {optimizer}, learning rate {learning_rate:.3g}, batch size {batch_size} |
| test split | {test} |
| classes | {classes} |

## Interface

Input `images`: uint8 RGB, shape `(N, {size}, {size}, 3)`, any N. Output `probabilities`: float32, shape
`(N, {labels})`. Normalisation is inside. Images of other sizes: cut the largest centred square, resize it to
{size} x {size}.

```python
import numpy as np, onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("model.onnx")
image = ImageOps.fit(Image.open("photo.jpg").convert("RGB"), ({size}, {size}), Image.Resampling.BILINEAR)
probabilities = session.run(None, {{"images": np.asarray(image)[None]}})[0]
```

`model.pt2` is the same graph for `torch.export.load`, `mlflow-model` for `mlflow models serve`, and
`model.safetensors` with `config.json` the weights to train on from.

## Checks

Largest difference from the trained model on real test images: {differences}.

## Limits

Trained on {size} px images of these classes alone; anything else gets one of them too. What was chosen
by a search was chosen on a validation split; whether it is better than the plain backbone has not been
confirmed on fresh seeds.
"""


def model_card(
    task: Task, *, run_id: str, name: str, test: dict[str, float], differences: dict[str, float]
) -> str:
    """The card in Markdown."""
    model, training, data = task.config.model, task.config.training, task.config.data
    return _CARD.format(
        name=name,
        run_id=run_id,
        labels=len(task.labels),
        classes=", ".join(task.labels),
        backbone=model.backbone,
        width=model.width,
        attention=", ".join(f"{spec} at {site}" for site, spec in model.placement.items()) or "none",
        source=data.source,
        size=data.size,
        epochs=training.epochs,
        optimizer=training.optimizer,
        learning_rate=training.learning_rate,
        batch_size=training.batch_size,
        test=", ".join(f"{key} {value:.4f}" for key, value in test.items()),
        differences=", ".join(f"{key} {value:.1e}" for key, value in differences.items()),
    )
