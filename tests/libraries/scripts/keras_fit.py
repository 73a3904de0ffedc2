"""Keras on torch: a convolutional net, fit with callbacks, evaluated, saved and loaded."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
from sklearn.datasets import load_digits

keras.utils.set_random_seed(0)
keras.config.set_floatx("float64")
digits = load_digits()
x, y = digits.images[:240, ..., None] / 16, digits.target[:240]
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(8, 3, use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(2),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    x[:192], y[:192], batch_size=32, epochs=3, validation_data=(x[192:], y[192:]), verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint("best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping(patience=2),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ReduceLROnPlateau(patience=1),
    ],
)
print(history.history)
print(model.evaluate(x[192:], y[192:], verbose=0), model.predict(x[:2], verbose=0).tolist())
model.save_weights("last.weights.h5")
again = keras.saving.load_model("best.keras")
print(again.evaluate(x[192:], y[192:], verbose=0, return_dict=True))
