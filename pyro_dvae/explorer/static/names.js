// Gradio shows the label of a group of radio buttons, but does not name the group after it.
() => {
  const name = () => {
    for (const group of document.querySelectorAll("fieldset:not([aria-label])")) {
      const label = group.querySelector("[data-testid=block-info]");
      if (label) group.setAttribute("aria-label", label.textContent.trim());
    }
  };
  new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
  name();
}
